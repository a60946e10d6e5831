"""The model to hand over: weights, ONNX, model card. A renderer: it may import `monitoring` and what lies below."""

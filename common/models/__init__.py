"""The networks, and how a study's settings become one. Imported by `payload`, `rpc` and both sides.

Loads nothing by itself, so that what a model file says of itself is read without torch.
"""

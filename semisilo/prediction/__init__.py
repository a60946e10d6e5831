"""An exported model at work: images in, probabilities out. Imported by `semisilo.cli` and notebooks."""

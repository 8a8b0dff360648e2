"""An example of layers that share keys and values: an architecture, and a command that converts checkpoints to it."""

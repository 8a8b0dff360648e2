"""An example of a multimodal model package for AetherMind."""

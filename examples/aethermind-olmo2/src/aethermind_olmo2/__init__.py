"""An example of a model family for AetherMind: OLMo 2."""

"""An example of a weight format for AetherMind: `ternary`."""

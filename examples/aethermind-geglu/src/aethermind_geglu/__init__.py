"""An example of an operator for AetherMind: `geglu`."""

"""An example of an executor for AetherMind: a flight recorder of its last steps."""

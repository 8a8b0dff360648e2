"""An example of a scheduling policy for AetherMind: two lanes."""

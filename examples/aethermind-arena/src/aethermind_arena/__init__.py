"""An example of a backend for AetherMind: a device with memory of its own."""

"""An example of a backend for AetherMind: a device with its own memory."""

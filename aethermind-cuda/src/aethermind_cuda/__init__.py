"""The NVIDIA GPU backend of AetherMind."""

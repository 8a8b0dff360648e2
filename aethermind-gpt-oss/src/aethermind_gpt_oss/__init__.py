"""gpt-oss for AetherMind."""

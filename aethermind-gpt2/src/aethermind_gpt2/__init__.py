"""GPT-2 for AetherMind."""

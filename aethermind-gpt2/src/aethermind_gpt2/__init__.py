"""GPT-2, GPT-NeoX, BLOOM and MPT for AetherMind."""

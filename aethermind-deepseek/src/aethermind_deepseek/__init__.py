"""DeepSeek V2, V3 and R1 for AetherMind."""

"""GLM-4 and GLM-4-0414 for AetherMind."""

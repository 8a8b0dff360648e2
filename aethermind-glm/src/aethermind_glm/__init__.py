"""GLM-4, GLM-4-0414 and GLM-4.5 for AetherMind."""

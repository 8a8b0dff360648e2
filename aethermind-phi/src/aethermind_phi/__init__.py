"""Phi-1 to Phi-2, Phi-3, Phi-3.5, Phi-4 and Phi-4-mini for AetherMind."""

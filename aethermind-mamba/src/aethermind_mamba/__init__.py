"""Mamba 2 and Falcon-H1 for AetherMind."""

"""Mamba 2, Falcon-H1 and LFM2 for AetherMind."""

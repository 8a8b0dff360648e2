"""Qwen2, Qwen2.5 and Qwen3 (dense) for AetherMind, and a small demo model."""

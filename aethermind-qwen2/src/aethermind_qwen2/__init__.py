"""Qwen2, Qwen2.5 and Qwen3, dense and with mixtures of experts, for AetherMind, and a small demo model."""

"""Qwen2 to Qwen3.5 (text), dense and with mixtures of experts, for AetherMind, and a small demo model."""

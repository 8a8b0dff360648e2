"""Llama 2, Llama 3 and Mistral for AetherMind."""

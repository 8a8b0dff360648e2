"""Llama 2, Llama 3, Mistral, Mixtral and OLMoE for AetherMind."""

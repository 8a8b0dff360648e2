"""Llama, Mistral, Mixtral, OLMo, SmolLM3, Granite, Command R, ERNIE 4.5, StableLM and StarCoder2 for AetherMind."""

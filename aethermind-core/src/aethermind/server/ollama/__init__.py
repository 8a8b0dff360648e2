"""Ollama's HTTP API (`/api/…`), as far as it is about models that this server serves."""

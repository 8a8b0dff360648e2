"""Ollama's HTTP API (`/api/…`), as far as it is about models that this server serves."""

from __future__ import annotations

__all__: list[str] = []

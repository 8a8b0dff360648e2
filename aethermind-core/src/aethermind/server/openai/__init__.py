"""The endpoints of OpenAI's HTTP API: strict request schemas, and responses and errors in its formats."""

from __future__ import annotations

from aethermind.server.openai.errors import ApiError

__all__ = ["ApiError"]

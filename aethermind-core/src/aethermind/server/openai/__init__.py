"""The endpoints of OpenAI's HTTP API: requests read strictly, answers and errors in its shapes."""

from __future__ import annotations

from aethermind.server.openai.errors import ApiError

__all__ = ["ApiError"]

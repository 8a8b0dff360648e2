"""Requests and their text: what a user asks, in tokens, and what has been answered so far."""

__all__: list[str] = []

"""Requests: prompts, parameters, parallel sampling, sessions, and output, from tokens to deltas."""

__all__: list[str] = []

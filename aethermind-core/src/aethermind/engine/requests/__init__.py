"""Requests: prompts, parameters, sampling groups, sessions, and the output from tokens to deltas."""

__all__: list[str] = []

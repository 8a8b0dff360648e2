"""Observation of an engine: its state, the time and memory of its steps, and their hardware limits."""

__all__: list[str] = []

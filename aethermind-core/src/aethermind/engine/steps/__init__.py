"""Execution of a scheduled step: its batch is written, a plan runs, and sampled tokens are read."""

__all__: list[str] = []

"""What an engine is doing, for those who look at it: its state, the time and memory of its steps, and their limits."""

__all__: list[str] = []

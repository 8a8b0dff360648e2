"""Who takes part in the next step, who gives way for it, and who waits. Pure Python: no device, no clock of its own."""

__all__: list[str] = []

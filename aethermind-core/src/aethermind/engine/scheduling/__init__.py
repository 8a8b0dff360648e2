"""The scheduler: which requests the next step computes, which are preempted, and which wait.

It is pure Python, with no device and no clock of its own.
"""

__all__: list[str] = []

"""The scheduler: which requests the next step computes, which are preempted, and which wait.

It is pure Python code over bookkeeping. It uses no device, and callers pass the time.
"""

__all__: list[str] = []

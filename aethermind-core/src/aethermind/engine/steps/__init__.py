"""Execution of a scheduled step: the batch that a plan reads, the run of the plan, and the sampled tokens."""

__all__: list[str] = []

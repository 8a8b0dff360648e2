"""What was scheduled, computed: the batch that a plan reads, the run of the plan, and the tokens that come of it."""

__all__: list[str] = []

"""What a client saw of each request, and of a run of them."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Outcome", "Run"]


@dataclass(slots=True)
class Outcome:
    """One request, in seconds of one clock. Mutable while it is recorded.

    `due_s` is when it should have been sent: a client that is late counts as waiting, so that a slow server does not
    hide behind it ("coordinated omission"). `texts_s` is when each piece of text came. `num_output_tokens` is what the
    server says it wrote, else the number of pieces. `failure` is a kind, such as "HTTP 429"; None for an answer.
    """

    due_s: float
    num_prompt_tokens: int
    num_output_tokens: int = 0
    texts_s: list[float] = field(default_factory=list)
    finished_s: float = 0.0
    failure: str | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.texts_s[0] - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None where there is no other."""
        steps = self.num_output_tokens - 1
        return (self.texts_s[-1] - self.texts_s[0]) / steps if steps > 0 else None

    @property
    def e2e_s(self) -> float:
        """From when it was due to the end of the answer."""
        return self.finished_s - self.due_s


@dataclass(slots=True)
class Run:
    """What is known of a run so far. Mutable: an interrupted run keeps what it has."""

    url: str
    model: str | None
    """None: the first that the server lists."""
    endpoint: str
    api_key: str | None
    outcomes: list[Outcome] = field(default_factory=list)
    duration_s: float = 0.0

"""Which package knows how an architecture's answers mark thoughts and tool calls."""

from __future__ import annotations

from aethermind.plugins.claims import Claims
from aethermind.text.answer_parser import AnswerFormat

__all__ = ["AnswerFormatRegistry"]


class AnswerFormatRegistry(Claims):
    """Names of architectures whose answers hold more than text."""

    kind = "Answer format of architecture"

    def find(self, name: str) -> AnswerFormat:
        """Import the format of an architecture; one without tags where no package has claimed it."""
        format: AnswerFormat | None = self.find_object(name)
        return format or AnswerFormat()

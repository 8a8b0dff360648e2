"""The tokens of a conversation as the model wrote them.

Text that is encoded again need not give the tokens it was made of, and what was computed is known by its tokens. Who
remembers them can use all of it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["TokenMemory"]


class TokenMemory:
    """Encodes the growing prompts of one conversation. Mutable: it learns each answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: list[tuple[str, list[int]]] = []

    def encode(self, prompt: str) -> list[int]:
        """Return the token ids of `prompt`: those of the longest beginning that is known, and the rest encoded.

        What was learned and does not begin this prompt is forgotten: the conversation went another way.
        """
        while self._known and not prompt.startswith(self._known[-1][0]):
            self._known.pop()
        text, token_ids = self._known[-1] if self._known else ("", [])
        return [*token_ids, *self._tokenizer.encode(prompt[len(text) :])]

    def learn(self, prompt: str, prompt_token_ids: Sequence[int], answer: str, token_ids: Sequence[int]) -> None:
        """Remember an answer, if its tokens, perhaps without the last one that ended it, are exactly its text."""
        for written in (token_ids, token_ids[:-1]):
            if self._tokenizer.decode(written, skip_special_tokens=False) == answer:
                self._known.append((prompt + answer, [*prompt_token_ids, *written]))
                return

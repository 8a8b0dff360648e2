"""Where the tokens of a text begin in it, while it grows."""

from __future__ import annotations

from collections.abc import Sequence

from aethermind.text.detokenizer import Detokenizer
from aethermind.text.tokenizer import Tokenizer

__all__ = ["TokenOffsets", "prompt_offsets"]


class TokenOffsets:
    """Counts characters. A token that is part of one begins where that does. Mutable: one per text."""

    def __init__(
        self, tokenizer: Tokenizer, start: int = 0, *, skip_special_tokens: bool = True, before: Sequence[int] = ()
    ) -> None:
        """Begin a text behind `start` characters and the tokens `before`; special tokens add nothing to it when
        `skip_special_tokens`.
        """
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens, before=before)
        self._num_chars = start

    def push(self, token_id: int) -> int:
        """Add a token; return where it begins."""
        told = len(self._detokenizer.push(token_id))
        begin = self._num_chars
        if told:  # perhaps with what had been held back for this token to complete it
            begin += max(0, told - len(self._tokenizer.token_text(token_id)))
        self._num_chars += told
        return begin


def prompt_offsets(tokenizer: Tokenizer, text: str, token_ids: Sequence[int]) -> list[int]:
    """Where the tokens of a prompt begin in its text, in which special tokens may be written out or not."""
    is_written_out = tokenizer.decode(token_ids, skip_special_tokens=False) == text
    offsets = TokenOffsets(tokenizer, skip_special_tokens=not is_written_out)
    return [offsets.push(token_id) for token_id in token_ids]

"""Incremental detokenisation: each delta of text is final, so that later tokens do not change it.

A token may be a part of a character, so text is held back until it is certain. With a byte-level tokenizer the text is
the tokens' bytes decoded as UTF-8, and an incremental UTF-8 decoder holds back unfinished characters. With other
tokenizers, a small window of tokens is decoded twice: the delta is the text that the new tokens add to that of the old
ones. The deltas add up to `tokenizer.decode(all_ids)`, at a cost per token that does not grow with the text. After
another text, such as a prompt, they add up to what the tokens add to that text: SentencePiece's decoders strip the
space of the first token of a sequence, and the first token of an answer is not the first of the sequence.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import Protocol

from aethermind.text.tokenizer import Tokenizer

__all__ = ["Detokenizer", "TokenOffsets", "last_text_token", "prompt_offsets"]

_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Decodes the tokens of one sequence incrementally. Mutable: one per sequence."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        visible_token_ids: Collection[int] = (),
        before: Sequence[int] = (),
    ) -> None:
        """Begin a text after the tokens `before`.

        Special tokens but `visible_token_ids` add nothing with `skip_special_tokens`.
        """
        self._skipped_ids = tokenizer.special_token_ids.difference(visible_token_ids)
        if not skip_special_tokens:
            self._skipped_ids = frozenset()
        self._decoder: _IncrementalDecoder = (
            _ByteDecoder(tokenizer) if tokenizer.is_byte_level else _WindowDecoder(tokenizer, before)
        )

    def push(self, token_id: int) -> str:
        """Add a token; return the text that is now final, `""` while a character is unfinished."""
        return "" if token_id in self._skipped_ids else self._decoder.push(token_id)

    def flush(self) -> str:
        """End the text; return what was held back, with an unfinished character as U+FFFD. A new text may follow."""
        return self._decoder.flush()

    def finish(self) -> str:
        """End the text; return what was held back without an unfinished character, which more tokens would complete."""
        return self._decoder.flush().rstrip(_REPLACEMENT)


class _IncrementalDecoder(Protocol):
    """Decodes tokens one by one; the methods are those of `Detokenizer`."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class _ByteDecoder:
    """Decodes byte-level tokens by an incremental UTF-8 decoder."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._token_bytes(token_id) or b"")

    def flush(self) -> str:
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


class _WindowDecoder:
    """Decodes a window of the tokens of the last delta (old) and the tokens since (new): the text after that of the old
    tokens is the delta.

    With the old tokens as context, decoders that treat the first token of a sequence differently (they strip its space,
    for example) do not treat a new token as the first.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._may_split_characters = "ByteLevel" in tokenizer.decoder_kinds
        context = last_text_token(tokenizer, before)
        self._window: list[int] = [] if context is None else [context]
        self._num_old = len(self._window)
        self._old_text = self._decode(self._window)

    def push(self, token_id: int) -> str:
        if self._tokenizer.id_to_token(token_id) is None:
            return ""
        self._window.append(token_id)
        # Whether a sequence of byte tokens is valid UTF-8 is known only at the token after it.
        if self._tokenizer.byte_of(token_id) is not None:
            return ""
        text = self._decode(self._window)
        if len(text) <= len(self._old_text) or (self._may_split_characters and text.endswith(_REPLACEMENT)):
            return ""
        delta = text[len(self._old_text) :]
        self._window = self._window[self._num_old :]
        self._num_old = len(self._window)
        self._old_text = self._decode(self._window)
        return delta

    def flush(self) -> str:
        delta = self._decode(self._window)[len(self._old_text) :]
        self._window, self._num_old, self._old_text = [], 0, ""
        return delta

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def last_text_token(tokenizer: Tokenizer, token_ids: Sequence[int]) -> int | None:
    """Return the last token that is text by itself, neither special nor one byte of a character, or None."""
    for token_id in reversed(token_ids):
        is_special = token_id in tokenizer.special_token_ids or tokenizer.id_to_token(token_id) is None
        if not is_special and tokenizer.byte_of(token_id) is None:
            return token_id
    return None


class TokenOffsets:
    """Offsets of tokens in a growing text, in characters. Mutable: one per text.

    A token that is a part of a character has the offset of the character.
    """

    def __init__(
        self, tokenizer: Tokenizer, start: int = 0, *, skip_special_tokens: bool = True, before: Sequence[int] = ()
    ) -> None:
        """Begin a text after `start` characters and the tokens `before`.

        Special tokens add nothing with `skip_special_tokens`.
        """
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens, before=before)
        self._num_chars = start

    def push(self, token_id: int) -> int:
        """Add a token; return its offset."""
        num_new = len(self._detokenizer.push(token_id))
        begin = self._num_chars
        if num_new:  # possibly including text that was held back before
            begin += max(0, num_new - len(self._tokenizer.token_text(token_id)))
        self._num_chars += num_new
        return begin


def prompt_offsets(tokenizer: Tokenizer, text: str, token_ids: Sequence[int]) -> list[int]:
    """Return the offsets of the tokens of a prompt in its text, with or without the texts of special tokens."""
    has_special_tokens = tokenizer.decode(token_ids, skip_special_tokens=False) == text
    offsets = TokenOffsets(tokenizer, skip_special_tokens=not has_special_tokens)
    return [offsets.push(token_id) for token_id in token_ids]

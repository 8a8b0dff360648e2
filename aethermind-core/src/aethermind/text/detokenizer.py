"""Token ids to text while they arrive: a delta holds only what later tokens can no longer change.

One token may be part of a character, so text is held back until it is certain. With a byte-level tokenizer the text
is the tokens' bytes read as UTF-8, and an incremental UTF-8 decoder knows exactly what is unfinished. Any other
tokenizer is asked to decode a small window twice: what the window's new tokens add to its old ones is the delta.
Either way the deltas add up to `tokenizer.decode(all_ids)`, at a cost per token that does not grow with the text. Where
the text follows another one, such as a prompt, they add up to what the tokens add to that: SentencePiece's decoders
take the space off a sequence's first token, and an answer's first token is not its text's.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from aethermind.text.tokenizer import Tokenizer

__all__ = ["Detokenizer", "last_text_token"]

_REPLACEMENT = "\ufffd"


class Detokenizer:
    """One request's tokens as a stream of text. Mutable: one per sequence, not to be shared."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, before: Sequence[int] = ()) -> None:
        """Begin an empty text behind the tokens `before`; special tokens add nothing when `skip_special_tokens`."""
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._stream: _Stream = _ByteStream(tokenizer) if tokenizer.is_byte_level else _WindowStream(tokenizer, before)

    def push(self, token_id: int) -> str:
        """Add a token; return the text that is now certain, `""` while a character is unfinished."""
        return "" if token_id in self._skipped else self._stream.push(token_id)

    def flush(self) -> str:
        """End the text; return what was held back, an unfinished character as U+FFFD. A new text may follow."""
        return self._stream.flush()

    def finish(self) -> str:
        """End the text; return what was held back, an unfinished character left out: more tokens would have made it."""
        return self._stream.flush().rstrip(_REPLACEMENT)


class _Stream(Protocol):
    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class _ByteStream:
    """Bytes of a byte-level vocabulary through an incremental UTF-8 decoder."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._token_bytes(token_id) or b"")

    def flush(self) -> str:
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


class _WindowStream:
    """The tokens of the last delta, then those since: decoding both, less the old part, is exact text.

    The old part gives the context in which decoders that treat a sequence's first token differently (stripping its
    space, for example) treat the new tokens as what they are: not the first.
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
        # A run of byte tokens is text or garbage as a whole: only the token that ends the run decides.
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
    """The last token that is text by itself, neither special nor one byte of a character; None where there is none."""
    for token_id in reversed(token_ids):
        is_special = token_id in tokenizer.special_token_ids or tokenizer.id_to_token(token_id) is None
        if not is_special and tokenizer.byte_of(token_id) is None:
            return token_id
    return None

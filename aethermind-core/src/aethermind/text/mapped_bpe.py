"""Byte-level BPE over memory-mapped tables: tokenises like the library, without reading the vocabulary.

The library normalises, splits and decodes text, which needs no vocabulary; pieces are merged to tokens here. That is
slower than in the library, so its tokenizer is read when much text was encoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as FastTokenizer

    from aethermind.text.bpe_tables import BpeTables

__all__ = ["MappedBpe"]

_MUCH_TEXT = 1 << 16
"""The number of characters after which the library's tokenizer is read."""

_LONG_PIECE = 256
"""The length of pieces, in characters, from which the library merges them: the time here grows with its square."""


class Encoded(NamedTuple):
    """The part of the library's `Encoding` that is used."""

    ids: list[int]


class MappedBpe:
    """Implements the methods of the library's tokenizer that `Tokenizer` uses, with the same results."""

    truncation = padding = None
    """There is neither truncation nor padding."""

    def __init__(self, tables: BpeTables, read_whole: Callable[[], FastTokenizer]) -> None:
        """Make a tokenizer over tables; `read_whole` reads the tokenizer that they were made of."""
        from tokenizers import Tokenizer as FastTokenizer

        self._tables = tables
        self._read_whole = read_whole
        self._shell = FastTokenizer.from_str(tables.shell)
        self._added = {text: token_id for token_id, text, _ in tables.added}
        self._added_names = {token_id: text for token_id, text, _ in tables.added}
        self._special = frozenset(text for _, text, is_special in tables.added if is_special)
        longest_first = sorted(self._added, key=len, reverse=True)
        self._added_pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
        self._num_chars_left = _MUCH_TEXT
        self._pieces: dict[str, list[int]] = {}
        self._whole: FastTokenizer | None = None

    @property
    def whole(self) -> FastTokenizer:
        """The library's tokenizer, which encodes all text once it was read."""
        if self._whole is None:
            self._whole = self._read_whole()
        return self._whole

    @property
    def decoder(self) -> Any:
        """The library's decoder."""
        return self._shell.decoder

    def encode_batch_fast(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[Encoded]:
        """Return the token ids of each text; TypeError for what is not text."""
        return [self._encode(text, add_special_tokens) for text in texts]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids, unknown ones skipped; OverflowError for one that does not fit in 32 bits."""
        names = (self.id_to_token(token_id) for token_id in token_ids)
        kept = [name for name in names if name is not None and not (skip_special_tokens and name in self._special)]
        return " ".join(kept) if self._shell.decoder is None else self._shell.decoder.decode(kept)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, added or of the vocabulary, or None."""
        added = self._added.get(token)
        return self._tables.find(token) if added is None else added

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token with an id, or None; OverflowError for an id that does not fit in 32 bits."""
        if not 0 <= token_id < 1 << 32:
            raise OverflowError(f"{token_id} is not a 32-bit number")
        return self._added_names.get(token_id) or self._tables.name(token_id)

    def get_vocab_size(self, *, with_added_tokens: bool) -> int:
        """Return the number of tokens, added ones always included."""
        return self._tables.vocab_size

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Return added tokens by id."""
        from tokenizers import AddedToken

        return {token_id: AddedToken(text, special=is_special) for token_id, text, is_special in self._tables.added}

    def to_str(self) -> str:
        """Return the whole tokenizer in the format of tokenizer.json."""
        return self.whole.to_str()

    def _encode(self, text: str, add_special_tokens: bool) -> Encoded:
        ids = self._encode_here(text)
        if ids is None:
            (encoded,) = self.whole.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return Encoded(encoded.ids)
        return Encoded([*self._tables.before, *ids, *self._tables.after] if add_special_tokens else ids)

    def _encode_here(self, text: str) -> list[int] | None:
        """Return the token ids of a text; None where the library should encode it."""
        self._num_chars_left -= len(text)
        if self._num_chars_left < 0 or self._whole is not None:
            return None
        ids: list[int] = []
        for part in self._parts(text):
            if isinstance(part, int):
                ids.append(part)
            elif len(part) <= _LONG_PIECE:
                ids += self._pieces.get(part) or self._encode_piece(part)
            else:
                return None
        return ids

    def _parts(self, text: str) -> Iterator[int | str]:
        """Yield the ids of added tokens in a text, and the pieces of the text between, in the byte alphabet."""
        spans = [text] if self._added_pattern is None else self._added_pattern.split(text)
        for index, span in enumerate(spans):
            if index % 2:
                yield self._added[span]
            elif span:
                normal = span if self._shell.normalizer is None else self._shell.normalizer.normalize_str(span)
                for piece, _ in self._shell.pre_tokenizer.pre_tokenize_str(normal):
                    yield piece

    def _encode_piece(self, piece: str) -> list[int]:
        """Return the tokens of a piece: repeatedly merge the pair of least rank, of equal ones the leftmost."""
        tables = self._tables
        token_id = tables.find(piece) if tables.ignore_merges else None
        ids = [tables.alphabet[char] for char in piece] if token_id is None else [token_id]
        ranks = [tables.rank(left, right) for left, right in pairwise(ids)]
        while ranks and (rank := min(ranks)) < tables.num_merges:
            place = ranks.index(rank)
            ids[place : place + 2] = [tables.merged(rank)]
            del ranks[place]
            if place > 0:
                ranks[place - 1] = tables.rank(ids[place - 1], ids[place])
            if place < len(ranks):
                ranks[place] = tables.rank(ids[place], ids[place + 1])
        self._pieces[piece] = ids
        return ids

"""Byte-level BPE over memory-mapped tables: tokenises like the `tokenizers` library, without reading the vocabulary.

The library normalises, splits and decodes text, which needs no vocabulary. Pieces are merged to tokens here, by tables
in a memory-mapped file, of which only the entries that are looked up are read. Merging is slower than in the library,
so the library's tokenizer is read once much text has been encoded.

The file begins with the length of a JSON header, as safetensors files do. The tables are: tokens by id, their ids in
the order of their texts, and the pairs of tokens that are merged, sorted, with ranks and results.
"""

from __future__ import annotations

import json
import mmap
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from aethermind.errors import TokenizerError
from aethermind.hal.memory import align_up
from aethermind.log import get_logger

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as FastTokenizer

__all__ = [
    "BYTE_OF_CHAR",
    "BpeTables",
    "MappedBpe",
    "has_tables",
    "write_tables",
]

_log = get_logger(__name__)

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted(frozenset(range(0x100)).difference(_PRINTABLE))

BYTE_OF_CHAR = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + i): byte for i, byte in enumerate(_OTHERS)}
"""The byte that each character of a byte-level vocabulary stands for.

Printable characters of Latin-1 represent themselves; the other bytes are represented by U+0100 and up, in order.
"""


_ALIGNMENT = 8
_INDEPENDENT_SPLITTERS = {"Split", "Digits", "ByteLevel"}
"""Pre-tokenizers that split each part of a text independently of the others."""


def has_tables(fast: FastTokenizer) -> bool:
    """Whether tables can represent a tokenizer: byte-level BPE as in GPT-2, Llama 3 and Qwen.

    The vocabulary must have every byte, so that no text is unknown; merges must depend on ranks alone; and added tokens
    must be matched literally, whatever surrounds them.
    """
    model: Any = fast.model
    if type(model).__name__ != "BPE" or fast.pre_tokenizer is None:
        return False
    splitters = _step_types(fast.pre_tokenizer, "pretokenizers")
    added = fast.get_added_tokens_decoder().values()
    return (
        not fast.encode_special_tokens
        and not (model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix)
        and splitters[-1] == "ByteLevel"
        and _INDEPENDENT_SPLITTERS.issuperset(splitters)
        and not any(token.lstrip or token.rstrip or token.single_word or not token.content for token in added)
        and (fast.normalizer is None or not any(token.normalized for token in added))
        and len({token.normalized for token in added}) <= 1
        and all(model.token_to_id(char) is not None for char in BYTE_OF_CHAR)
        and _added_around(fast) is not None
    )


def write_tables(fast: FastTokenizer, key: str) -> Iterator[bytes]:
    """Yield the parts of the file for a tokenizer that `has_tables`; `key` is stored in the header.

    ValueError where tokens share ids, or ids are sparse.
    """
    state = json.loads(fast.to_str())
    vocabulary: dict[str, int] = state["model"]["vocab"]
    merges: list[tuple[str, str]] = state["model"]["merges"]
    num_ids = max(vocabulary.values()) + 1
    if len(set(vocabulary.values())) < len(vocabulary) or num_ids > 2 * len(vocabulary):
        raise ValueError(f"{len(vocabulary)} tokens have ids up to {num_ids - 1}")
    pairs_by_key = sorted(
        (_pair(vocabulary[left], vocabulary[right]), rank) for rank, (left, right) in enumerate(merges)
    )
    tokens_by_id = [b""] * num_ids
    for token, token_id in vocabulary.items():
        tokens_by_id[token_id] = token.encode()
    tables = {
        "pairs": array("Q", (pair for pair, _ in pairs_by_key)).tobytes(),
        "ranks": array("I", (rank for _, rank in pairs_by_key)).tobytes(),
        "merged": array("I", (vocabulary[left + right] for left, right in merges)).tobytes(),
        "token_begins": array("I", accumulate(map(len, tokens_by_id), initial=0)).tobytes(),
        "sorted_ids": array("I", (vocabulary[token] for token in sorted(vocabulary))).tobytes(),
        "tokens": b"".join(tokens_by_id),
    }
    added = fast.get_added_tokens_decoder()
    header = {
        "key": key,
        "sizes": {name: len(table) for name, table in tables.items()},
        "vocab_size": fast.get_vocab_size(with_added_tokens=True),
        "ignore_merges": state["model"].get("ignore_merges", False),
        "alphabet": {char: vocabulary[char] for char in BYTE_OF_CHAR},
        "added": [[token_id, token.content, token.special] for token_id, token in added.items()],
        "added_around": _added_around(fast),
        "tokenizer_json": json.dumps(_remove_vocabulary(state)),
    }
    text = json.dumps(header).encode()
    yield len(text).to_bytes(8, "little")
    yield _padded(text)
    for table in tables.values():
        yield _padded(table)


class BpeTables:
    """The tables of a file. Immutable."""

    def __init__(self, path: Path, key: str) -> None:
        """Map a file that was written for `key`.

        Raises:
            ValueError: it is damaged, or was written for another key.
            OSError: it cannot be read.
        """
        with path.open("rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        end = 8 + int.from_bytes(mapped[:8], "little")
        header = json.loads(bytes(mapped[8:end])) if end <= len(mapped) else None
        if not isinstance(header, dict) or header.get("key") != key:
            raise ValueError("it holds another tokenizer than its name says")
        tables = {}
        begin = align_up(end, _ALIGNMENT)
        for name, size in header["sizes"].items():
            tables[name] = mapped[begin : begin + size]
            begin = align_up(begin + size, _ALIGNMENT)
        if begin != len(mapped):
            raise ValueError(f"it has {len(mapped)} bytes, and {begin} were written")
        self.tokenizer_json: str = header["tokenizer_json"]
        """The tokenizer in the format of tokenizer.json, without its vocabulary."""
        self.vocab_size: int = header["vocab_size"]
        self.ignore_merges: bool = header["ignore_merges"]
        """Whether a piece that is in the vocabulary is not merged."""
        self.alphabet: dict[str, int] = header["alphabet"]
        """Ids of the single-byte tokens, by their characters."""
        self.added: list[tuple[int, str, bool]] = [(number, text, special) for number, text, special in header["added"]]
        """Id and text of every added token, and whether it is special."""
        self.before, self.after = header["added_around"]
        """Ids of special tokens that are added before and after a text."""
        self._pairs = tables["pairs"].cast("Q")
        self._ranks = tables["ranks"].cast("I")
        self._merged = tables["merged"].cast("I")
        self._begins = tables["token_begins"].cast("I")
        self._sorted_ids = tables["sorted_ids"].cast("I")
        self._token_bytes = tables["tokens"]

    def name(self, token_id: int) -> str | None:
        """Return the token of the vocabulary with an id, or None."""
        return self._token(token_id).decode() or None if 0 <= token_id < len(self._begins) - 1 else None

    def find(self, token: str) -> int | None:
        """Return the id of a token, or None."""
        name = token.encode()
        position = bisect_left(self._sorted_ids, name, key=self._token)
        if position == len(self._sorted_ids) or self._token(self._sorted_ids[position]) != name:
            return None
        return self._sorted_ids[position]

    @property
    def num_merges(self) -> int:
        """The number of merges; ranks are smaller."""
        return len(self._merged)

    def rank(self, left: int, right: int) -> int:
        """Return the rank of the merge of two tokens, the least being merged first; `num_merges` if there is none."""
        pair = _pair(left, right)
        position = bisect_left(self._pairs, pair)
        return (
            self._ranks[position] if position < len(self._pairs) and self._pairs[position] == pair else self.num_merges
        )

    def merged(self, rank: int) -> int:
        """Return the token that results from the merge with a rank."""
        return self._merged[rank]

    def _token(self, token_id: int) -> bytes:
        return bytes(self._token_bytes[self._begins[token_id] : self._begins[token_id + 1]])


def _pair(left: int, right: int) -> int:
    """The key of a pair of token ids: both in one 64-bit integer."""
    return left << 32 | right


def _added_around(fast: FastTokenizer) -> tuple[list[int], list[int]] | None:
    """Return the special ids that are added before and after the ids of a text; None if ids are added in between."""
    ids = fast.encode("a", add_special_tokens=False).ids
    ids_with_special = fast.encode("a", add_special_tokens=True).ids
    for begin in range(len(ids_with_special) - len(ids) + 1):
        if ids_with_special[begin : begin + len(ids)] == ids:
            return ids_with_special[:begin], ids_with_special[begin + len(ids) :]
    return None


def _step_types(component: Any, plural: str) -> list[str]:
    """Return the types of the steps of a component of the library, such as a pre-tokenizer, in order."""
    state = json.loads(component.__getstate__())
    steps = state[plural] if state["type"] == "Sequence" else [state]
    return [step["type"] for step in steps]


def _remove_vocabulary(state: Mapping[str, Any]) -> dict[str, Any]:
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    return {**state, "model": empty, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}


def _padded(part: bytes) -> bytes:
    """Pad a part of the file with zeros to the alignment."""
    return part.ljust(align_up(len(part), _ALIGNMENT), b"\0")


_MAX_MAPPED_CHARS = 1 << 16
"""The number of characters after which the library's tokenizer is read, because it is faster."""

_MAX_CACHED_PIECES = 1 << 16
"""The number of pieces of which the token ids are remembered."""

_MAX_PIECE_CHARS = 256
"""The length in characters of the longest piece that is merged here: the time grows with the square of the length."""


class Encoded(NamedTuple):
    """The attribute of the library's `Encoding` that `Tokenizer` uses."""

    ids: list[int]


class MappedBpe:
    """Implements the methods of the library's tokenizer that `Tokenizer` uses, with the same results."""

    truncation = padding = None
    """There is neither truncation nor padding."""

    def __init__(self, tables: BpeTables, read_library_tokenizer: Callable[[], FastTokenizer]) -> None:
        """Make a tokenizer over tables; `read_library_tokenizer` reads the tokenizer that they were made of."""
        from tokenizers import Tokenizer as FastTokenizer

        self._tables = tables
        self._read_library_tokenizer = read_library_tokenizer
        self._empty_tokenizer = FastTokenizer.from_str(tables.tokenizer_json)
        """Has no vocabulary; its normaliser, pre-tokenizer and decoder are used."""
        self._added = {text: token_id for token_id, text, _ in tables.added}
        self._added_names = {token_id: text for token_id, text, _ in tables.added}
        self._special = frozenset(text for _, text, is_special in tables.added if is_special)
        longest_first = sorted(self._added, key=len, reverse=True)
        self._added_pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
        self._num_chars_left = _MAX_MAPPED_CHARS
        self._ids_of_piece: dict[str, list[int]] = {}
        self._library_tokenizer: FastTokenizer | None = None
        self._read_lock = Lock()
        self._is_readable = True

    @property
    def library_tokenizer(self) -> FastTokenizer:
        """The library's tokenizer. Once it has been read, it encodes all text."""
        with self._read_lock:
            if self._library_tokenizer is None:
                self._library_tokenizer = self._read_library_tokenizer()
            return self._library_tokenizer

    @property
    def decoder(self) -> Any:
        """The library's decoder."""
        return self._empty_tokenizer.decoder

    def encode_batch_fast(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[Encoded]:
        """Return the token ids of each text; TypeError for what is not text."""
        return [self._encode(text, add_special_tokens) for text in texts]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids, unknown ones skipped; OverflowError for one that does not fit in 32 bits."""
        tokens = (self.id_to_token(token_id) for token_id in token_ids)
        kept = [name for name in tokens if name is not None and not (skip_special_tokens and name in self._special)]
        return " ".join(kept) if self._empty_tokenizer.decoder is None else self._empty_tokenizer.decoder.decode(kept)

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
        """Return the tokenizer with its vocabulary in the format of tokenizer.json."""
        return self.library_tokenizer.to_str()

    def _encode(self, text: str, add_special_tokens: bool) -> Encoded:
        ids = self._encode_by_tables(text)
        if ids is None:
            (encoded,) = self.library_tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return Encoded(encoded.ids)
        return Encoded([*self._tables.before, *ids, *self._tables.after] if add_special_tokens else ids)

    def _encode_by_tables(self, text: str) -> list[int] | None:
        """Return the token ids of a text; None where the library should encode it."""
        self._num_chars_left -= len(text)
        if self._library_tokenizer is not None or (self._num_chars_left < 0 and self._can_read_library_tokenizer()):
            return None
        ids: list[int] = []
        for piece in self._pieces(text):
            if isinstance(piece, int):
                ids.append(piece)
            elif len(piece) <= _MAX_PIECE_CHARS:
                ids += self._ids_of_piece.get(piece) or self._encode_piece(piece)
            else:
                return None
        return ids

    def _can_read_library_tokenizer(self) -> bool:
        """Read the library's tokenizer; False if its file has changed, so that the tables encode the text."""
        if self._is_readable:
            try:
                return self.library_tokenizer is not None
            except TokenizerError as error:
                self._is_readable = False
                _log.warning("Long prompts take more time to encode: %s", error)
        return False

    def _pieces(self, text: str) -> Iterator[int | str]:
        """Yield the ids of added tokens in a text, and the pieces between them in byte-level characters."""
        spans = [text] if self._added_pattern is None else self._added_pattern.split(text)
        for index, span in enumerate(spans):
            if index % 2:
                yield self._added[span]
            elif span:
                normal = (
                    span
                    if self._empty_tokenizer.normalizer is None
                    else self._empty_tokenizer.normalizer.normalize_str(span)
                )
                for piece, _ in self._empty_tokenizer.pre_tokenizer.pre_tokenize_str(normal):
                    yield piece

    def _encode_piece(self, piece: str) -> list[int]:
        """Return the token ids of a piece: repeatedly merge the pair of least rank, the leftmost of equal ones."""
        tables = self._tables
        token_id = tables.find(piece) if tables.ignore_merges else None
        ids = [tables.alphabet[char] for char in piece] if token_id is None else [token_id]
        ranks = [tables.rank(left, right) for left, right in pairwise(ids)]
        while ranks and (rank := min(ranks)) < tables.num_merges:
            position = ranks.index(rank)
            ids[position : position + 2] = [tables.merged(rank)]
            del ranks[position]
            if position > 0:
                ranks[position - 1] = tables.rank(ids[position - 1], ids[position])
            if position < len(ranks):
                ranks[position] = tables.rank(ids[position], ids[position + 1])
        if len(self._ids_of_piece) >= _MAX_CACHED_PIECES:
            self._ids_of_piece.clear()
        self._ids_of_piece[piece] = ids
        return ids

"""Byte-level BPE as tables in one file, which is memory-mapped: nothing is read before it is looked up.

The file begins with the length of a JSON header, as safetensors files do. The tables are: tokens by id, their ids in
the order of their texts, and the pairs of tokens that are merged, sorted, with ranks and results.
"""

from __future__ import annotations

import json
import mmap
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.hal.memory import align_up

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

__all__ = ["BYTE_OF_CHAR", "BpeTables", "has_tables", "write_tables"]

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted(frozenset(range(0x100)).difference(_PRINTABLE))

BYTE_OF_CHAR = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + i): byte for i, byte in enumerate(_OTHERS)}
"""Bytes by their characters in byte-level vocabularies.

Printable characters of Latin-1 represent themselves; the other bytes are represented by U+0100 and up, in order.
"""


_ALIGNMENT = 8
_SPLITTERS = {"Split", "Digits", "ByteLevel"}
"""Pre-tokenizers that split each part of a text independently of the others."""


def has_tables(fast: FastTokenizer) -> bool:
    """Whether tables can represent a tokenizer: byte-level BPE as in GPT-2, Llama 3 and Qwen.

    Its vocabulary has every byte, so no text is unknown; it merges by rank alone; and added tokens are matched
    literally, whatever surrounds them.
    """
    model: Any = fast.model
    if type(model).__name__ != "BPE" or fast.pre_tokenizer is None:
        return False
    splitters = _steps(fast.pre_tokenizer, "pretokenizers")
    added = fast.get_added_tokens_decoder().values()
    return (
        not fast.encode_special_tokens
        and not (model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix)
        and splitters[-1] == "ByteLevel"
        and _SPLITTERS.issuperset(splitters)
        and not any(token.lstrip or token.rstrip or token.single_word or not token.content for token in added)
        and (fast.normalizer is None or not any(token.normalized for token in added))
        and len({token.normalized for token in added}) <= 1
        and all(model.token_to_id(char) is not None for char in BYTE_OF_CHAR)
        and _surroundings(fast) is not None
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
    keyed = sorted((_pair(vocabulary[left], vocabulary[right]), rank) for rank, (left, right) in enumerate(merges))
    names = [b""] * num_ids
    for token, token_id in vocabulary.items():
        names[token_id] = token.encode()
    tables = {
        "pairs": array("Q", (pair for pair, _ in keyed)).tobytes(),
        "ranks": array("I", (rank for _, rank in keyed)).tobytes(),
        "merged": array("I", (vocabulary[left + right] for left, right in merges)).tobytes(),
        "begins": array("I", accumulate(map(len, names), initial=0)).tobytes(),
        "sorted_ids": array("I", (vocabulary[token] for token in sorted(vocabulary))).tobytes(),
        "names": b"".join(names),
    }
    added = fast.get_added_tokens_decoder()
    header = {
        "key": key,
        "sizes": {name: len(table) for name, table in tables.items()},
        "vocab_size": fast.get_vocab_size(with_added_tokens=True),
        "ignore_merges": state["model"].get("ignore_merges", False),
        "alphabet": {char: vocabulary[char] for char in BYTE_OF_CHAR},
        "added": [[token_id, token.content, token.special] for token_id, token in added.items()],
        "surroundings": _surroundings(fast),
        "shell": json.dumps(_without_vocabulary(state)),
    }
    text = json.dumps(header).encode()
    yield len(text).to_bytes(8, "little")
    yield _filled(text)
    for table in tables.values():
        yield _filled(table)


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
        self.shell: str = header["shell"]
        """The tokenizer in the format of tokenizer.json, without its vocabulary."""
        self.vocab_size: int = header["vocab_size"]
        self.ignore_merges: bool = header["ignore_merges"]
        """Whether a piece that is in the vocabulary is not merged."""
        self.alphabet: dict[str, int] = header["alphabet"]
        """Ids of the single-byte tokens, by their characters."""
        self.added: list[tuple[int, str, bool]] = [(number, text, special) for number, text, special in header["added"]]
        """Id and text of every added token, and whether it is special."""
        self.before, self.after = header["surroundings"]
        """Ids of special tokens that are added before and after a text."""
        self._pairs = tables["pairs"].cast("Q")
        self._ranks = tables["ranks"].cast("I")
        self._merged = tables["merged"].cast("I")
        self._begins = tables["begins"].cast("I")
        self._sorted_ids = tables["sorted_ids"].cast("I")
        self._names = tables["names"]

    def name(self, token_id: int) -> str | None:
        """Return the token of the vocabulary with an id, or None."""
        return self._name(token_id).decode() or None if 0 <= token_id < len(self._begins) - 1 else None

    def find(self, token: str) -> int | None:
        """Return the id of a token, or None."""
        name = token.encode()
        place = bisect_left(self._sorted_ids, name, key=self._name)
        if place == len(self._sorted_ids) or self._name(self._sorted_ids[place]) != name:
            return None
        return self._sorted_ids[place]

    @property
    def num_merges(self) -> int:
        """The number of merges; ranks are smaller."""
        return len(self._merged)

    def rank(self, left: int, right: int) -> int:
        """Return the rank of the merge of two tokens, the least being merged first; `num_merges` if there is none."""
        pair = _pair(left, right)
        place = bisect_left(self._pairs, pair)
        return self._ranks[place] if place < len(self._pairs) and self._pairs[place] == pair else self.num_merges

    def merged(self, rank: int) -> int:
        """Return the token that results from the merge with a rank."""
        return self._merged[rank]

    def _name(self, token_id: int) -> bytes:
        return bytes(self._names[self._begins[token_id] : self._begins[token_id + 1]])


def _pair(left: int, right: int) -> int:
    return left << 32 | right


def _surroundings(fast: FastTokenizer) -> tuple[list[int], list[int]] | None:
    """Return the ids added before and after those of a text; None where special tokens are added otherwise."""
    bare = fast.encode("a", add_special_tokens=False).ids
    full = fast.encode("a", add_special_tokens=True).ids
    for begin in range(len(full) - len(bare) + 1):
        if full[begin : begin + len(bare)] == bare:
            return full[:begin], full[begin + len(bare) :]
    return None


def _steps(component: Any, plural: str) -> list[str]:
    """Return the types of a component's steps in order."""
    state = json.loads(component.__getstate__())
    steps = state[plural] if state["type"] == "Sequence" else [state]
    return [step["type"] for step in steps]


def _without_vocabulary(state: Mapping[str, Any]) -> dict[str, Any]:
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    return {**state, "model": empty, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}


def _filled(part: bytes) -> bytes:
    return part.ljust(align_up(len(part), _ALIGNMENT), b"\0")

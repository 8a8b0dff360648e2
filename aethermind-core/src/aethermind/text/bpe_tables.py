"""Byte-level BPE as tables in one file: it is mapped, and nothing of it is read before it is looked up.

The file begins with the length of a header in JSON, as safetensors files do, and goes on with the tables: tokens by id,
their ids in the order of their texts, and the pairs of tokens that are merged, in order, with ranks and results.
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

from aethermind.hal.layout import align_up
from aethermind.text.byte_alphabet import BYTE_OF_CHAR

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

__all__ = ["BpeTables", "has_tables", "write_tables"]

_ALIGNMENT = 8
_SPLITTERS = {"Split", "Digits", "ByteLevel"}
"""They cut each stretch of text as if it were alone."""


def has_tables(fast: FastTokenizer) -> bool:
    """Whether tables say all of a tokenizer: byte-level BPE as GPT-2, Llama 3 and Qwen have it.

    Its vocabulary has every byte, so no text is unknown; it merges by rank alone; and added tokens are found in a text
    as they are written, all of them and whatever is beside them.
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
        and not any(one.lstrip or one.rstrip or one.single_word or not one.content for one in added)
        and (fast.normalizer is None or not any(one.normalized for one in added))
        and len({one.normalized for one in added}) <= 1
        and all(model.token_to_id(char) is not None for char in BYTE_OF_CHAR)
        and _surroundings(fast) is not None
    )


def write_tables(fast: FastTokenizer, key: str) -> Iterator[bytes]:
    """The parts of the file for a tokenizer that `has_tables`, one after the other; `key` is what it is known by.

    ValueError where ids are not those of a vocabulary: shared by tokens, or far apart.
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
        "keeps_whole_words": state["model"].get("ignore_merges", False),
        "alphabet": {char: vocabulary[char] for char in BYTE_OF_CHAR},
        "added": [[token_id, one.content, one.special] for token_id, one in added.items()],
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
            ValueError: it is not what was written.
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
        """The tokenizer in the form of tokenizer.json, without vocabulary."""
        self.vocab_size: int = header["vocab_size"]
        self.keeps_whole_words: bool = header["keeps_whole_words"]
        """Whether a piece that is a token itself is not merged."""
        self.alphabet: dict[str, int] = header["alphabet"]
        """Ids of the tokens that are single bytes, by their characters."""
        self.added: list[tuple[int, str, bool]] = [(number, text, special) for number, text, special in header["added"]]
        """Id and text of every added token, and whether it is special."""
        self.before, self.after = header["surroundings"]
        """Ids of special tokens that are put around a text."""
        self._pairs = tables["pairs"].cast("Q")
        self._ranks = tables["ranks"].cast("I")
        self._merged = tables["merged"].cast("I")
        self._begins = tables["begins"].cast("I")
        self._sorted_ids = tables["sorted_ids"].cast("I")
        self._names = tables["names"]

    def name(self, token_id: int) -> str | None:
        """The token of the vocabulary with an id, None where there is none."""
        return self._name(token_id).decode() or None if 0 <= token_id < len(self._begins) - 1 else None

    def find(self, token: str) -> int | None:
        """The id of a token, None where there is none."""
        name = token.encode()
        place = bisect_left(self._sorted_ids, name, key=self._name)
        if place == len(self._sorted_ids) or self._name(self._sorted_ids[place]) != name:
            return None
        return self._sorted_ids[place]

    @property
    def num_merges(self) -> int:
        """Ranks are below it."""
        return len(self._merged)

    def rank(self, left: int, right: int) -> int:
        """When a pair of tokens is merged, the least first; `num_merges` for a pair that is not."""
        pair = _pair(left, right)
        place = bisect_left(self._pairs, pair)
        return self._ranks[place] if place < len(self._pairs) and self._pairs[place] == pair else self.num_merges

    def merged(self, rank: int) -> int:
        """The token that the pair of a rank becomes."""
        return self._merged[rank]

    def _name(self, token_id: int) -> bytes:
        return bytes(self._names[self._begins[token_id] : self._begins[token_id + 1]])


def _pair(left: int, right: int) -> int:
    return left << 32 | right


def _surroundings(fast: FastTokenizer) -> tuple[list[int], list[int]] | None:
    """The ids that a text's are put between; None where they are not put around it."""
    bare = fast.encode("a", add_special_tokens=False).ids
    full = fast.encode("a", add_special_tokens=True).ids
    for begin in range(len(full) - len(bare) + 1):
        if full[begin : begin + len(bare)] == bare:
            return full[:begin], full[begin + len(bare) :]
    return None


def _steps(component: Any, plural: str) -> list[str]:
    """The kinds of a component's steps in order."""
    state = json.loads(component.__getstate__())
    steps = state[plural] if state["type"] == "Sequence" else [state]
    return [step["type"] for step in steps]


def _without_vocabulary(state: Mapping[str, Any]) -> dict[str, Any]:
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    return {**state, "model": empty, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}


def _filled(part: bytes) -> bytes:
    return part.ljust(align_up(len(part), _ALIGNMENT), b"\0")

"""A sequence as bytes: the content of its blocks, and what the cache has to know to go on with it."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

from aethermind.cache.container import BlockTensor, StoredBlocks, read_blocks, write_blocks
from aethermind.cache.positions import Run, TokenPositions
from aethermind.cache.sequence import CachedSequence
from aethermind.errors import CacheContentError

__all__ = ["BlockContents", "hash_tokens", "pack_sequence", "unpack_sequence"]


class BlockContents(Protocol):
    """Carries the content of device blocks, of all layers, to host memory and back."""

    @property
    def fingerprint(self) -> str:
        """All that the content depends on besides tokens: model, adapter, quantisation, tenant."""
        ...

    def read(self, blocks: Sequence[int]) -> Mapping[str, BlockTensor]:
        """Return what `blocks` hold: every tensor's rows, in their order."""
        ...

    def write(self, tensors: Mapping[str, BlockTensor], blocks: Sequence[int]) -> None:
        """Make `blocks` hold `tensors`; CacheContentError, and nothing written, where they are not like its own."""
        ...


def hash_tokens(token_ids: Sequence[int]) -> str:
    """32 hexadecimal digits that stand for these tokens in this order."""
    return blake2b(array("q", token_ids).tobytes(), digest_size=16).hexdigest()


def pack_sequence(
    sequence: CachedSequence, num_blocks: int, contents: BlockContents, token_ids: Sequence[int]
) -> bytes:
    """The container of the first `num_blocks` blocks of a sequence in device memory, whose tokens are `token_ids`."""
    notes = {
        "positions": json.dumps(sequence.positions.runs),
        "num_original": str(sequence.num_original),
        "extra_key": sequence.extra_key.hex(),
    }
    token_hash = hash_tokens(token_ids[: sequence.num_tokens])
    tensors = contents.read(sequence.block_table[:num_blocks].tolist())
    return write_blocks(StoredBlocks(contents.fingerprint, token_hash, sequence.num_tokens, tensors, notes))


def unpack_sequence(
    data: bytes, contents: BlockContents, token_ids: Sequence[int]
) -> tuple[CachedSequence, Mapping[str, BlockTensor]]:
    """A sequence without blocks, and what they have to hold.

    Raises CacheContentError for damaged data, data of another model, and data of other tokens than `token_ids`.
    """
    stored = read_blocks(data, contents.fingerprint)
    if stored.token_hash != hash_tokens(token_ids[: stored.num_tokens]):
        raise CacheContentError(
            f"Stored keys and values of {stored.num_tokens} tokens are of others than the {len(token_ids)} given. "
            "Load them with the tokens they were saved with."
        )
    try:
        notes = stored.notes
        sequence = CachedSequence([], stored.num_tokens, bytes.fromhex(notes["extra_key"]))
        sequence.num_original = int(notes["num_original"])
        sequence.disturb(sequence.num_original, TokenPositions(Run(*run) for run in json.loads(notes["positions"])))
    except (KeyError, TypeError, ValueError) as error:
        raise CacheContentError(f"Stored keys and values are not those of a saved sequence ({error}).") from error
    return sequence, stored.tensors

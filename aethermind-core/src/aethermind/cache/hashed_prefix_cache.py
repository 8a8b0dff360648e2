"""Prefixes found by content: full blocks under a chain of hashes over the tokens they hold."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Protocol

from aethermind.cache.block_pool import BlockPool

__all__ = ["HashedPrefixCache", "KeptBlocks", "chain_hash"]

_TOKEN_TYPE = "q"
_TOKEN_BYTES = array(_TOKEN_TYPE).itemsize


def chain_hash(parent: bytes, content: bytes) -> bytes:
    """The key of a block: 16 bytes that depend on its content and, through `parent`, on all that precedes it."""
    return blake2b(parent + content, digest_size=16).digest()


class KeptBlocks(Protocol):
    """Whoever wants to know which blocks hold what."""

    def kept(self, key: bytes, block: int) -> None:
        """From now on `block` is remembered under `key`; it is full, and nobody writes to it."""
        ...

    def dropped(self, block: int) -> None:
        """`block` is not remembered any more; when this returns, others may write to it."""
        ...


class RememberedBlock:
    """A remembered block: the tokens in it, and that of the block before (of a first block: the extra key)."""

    __slots__ = ("block", "key", "num_pins", "parent", "tokens")

    def __init__(self, key: bytes, parent: RememberedBlock | bytes, tokens: bytes, block: int) -> None:
        self.num_pins = 0
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.block = block


class HashedPrefixCache:
    """Remembers every full block it is shown until room is needed, and gives up the least recently used first.

    An entry is found by its hash and believed only if its tokens are those asked for and its parent is the entry
    found before it: a collision costs a reuse, never a wrong answer. An entry whose parent was given up can no longer
    be reached; it is replaced when its tokens are published again, or ages away. Sequences let go of their last block
    first, so that as a rule the end of a prefix is given up before its beginning. Not thread-safe.
    """

    __slots__ = ("_block_size", "_by_block", "_by_key", "_hash", "_pool", "_root", "listener", "salt")

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        salt: bytes = b"",
        *,
        hash: Callable[[bytes, bytes], bytes] = chain_hash,
    ) -> None:
        """Remember blocks of `pool`, each of `block_size` tokens.

        `salt` names all that the content of a block depends on besides tokens: model, adapter, quantisation, tenant.
        """
        self._pool = pool
        self._block_size = block_size
        self._hash = hash
        self.listener: KeptBlocks | None = None
        """Whoever is told what is kept and dropped from now on."""
        self.salt = salt
        self._root = hash(b"", salt)
        self._by_key: dict[bytes, RememberedBlock] = {}
        self._by_block: dict[int, RememberedBlock] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks remembered, those in use by sequences among them."""
        return len(self._by_key)

    @property
    def num_reclaimable(self) -> int:
        """Blocks remembered that no sequence uses."""
        return self._pool.num_idle

    def keys(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[bytes]:
        """The keys of the full blocks of `token_ids`, in order, whether they are known or not."""
        content, stride = array(_TOKEN_TYPE, token_ids).tobytes(), self._block_size * _TOKEN_BYTES
        ends = range(stride, len(content) + 1, stride)
        chain = accumulate(
            (content[end - stride : end] for end in ends), self._hash, initial=self._first_key(extra_key)
        )
        return list(chain)[1:]

    def match(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[int]:
        """Return the full blocks that hold the longest known prefix of `token_ids`, in order, unacquired."""
        return [entry.block for entry in self._known(token_ids, extra_key)]

    def pin(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[RememberedBlock]:
        """Give the blocks of that prefix up after all others, until `unpin`. Pins add up."""
        entries = self._known(token_ids, extra_key)
        for entry in entries:
            entry.num_pins += 1
        return entries

    def unpin(self, pinned: Sequence[RememberedBlock]) -> None:
        """Take back what `pin` returned, whatever has become of it."""
        for entry in pinned:
            entry.num_pins -= 1
            if not entry.num_pins:
                self._pool.recall(entry.block)

    def _known(self, token_ids: Sequence[int], extra_key: bytes) -> list[RememberedBlock]:
        entries: list[RememberedBlock] = []
        if not self._by_key:
            return entries
        parent: RememberedBlock | bytes = extra_key
        key = self._first_key(extra_key)
        for end in range(self._block_size, len(token_ids) + 1, self._block_size):
            tokens = array(_TOKEN_TYPE, token_ids[end - self._block_size : end]).tobytes()
            key = self._hash(key, tokens)
            entry = self._by_key.get(key)
            if entry is None or entry.tokens != tokens or entry.parent != parent:
                break
            entries.append(entry)
            parent = entry
        return entries

    def publish(self, token_ids: Sequence[int], blocks: Sequence[int], extra_key: bytes = b"") -> None:
        """Remember that `blocks`, all full and in use, hold `token_ids`.

        Of two blocks with the same content, the one that is in use or was used last is kept.
        """
        content, stride = array(_TOKEN_TYPE, token_ids).tobytes(), self._block_size * _TOKEN_BYTES
        parent: RememberedBlock | bytes = extra_key
        key = self._first_key(extra_key)
        for index, block in enumerate(blocks):
            tokens = content[index * stride : (index + 1) * stride]
            key = self._hash(key, tokens)
            entry = self._by_key.get(key)
            if entry is not None and (entry.tokens != tokens or entry.parent != parent):
                self._forget(entry)
                entry = None
            if entry is None:
                entry = self._by_key[key] = RememberedBlock(key, parent, tokens, block)
                self._keep(entry, block)
            elif entry.block != block and self._pool.is_idle(entry.block):
                self._drop(entry.block)
                self._keep(entry, block)
            parent = entry

    def reclaim(self, num_blocks: int) -> None:
        """Free up to `num_blocks` blocks that no sequence uses, the least recently used first, pinned ones last."""
        for _ in range(min(num_blocks, self._pool.num_idle)):
            self._forget(self._next_to_go())

    def _next_to_go(self) -> RememberedBlock:
        """Each pinned block is passed over once, however often others are given up after that."""
        while True:
            entry = self._by_block[self._pool.oldest_idle()]
            if not (entry.num_pins and self._pool.pass_over(entry.block)):
                return entry

    def _first_key(self, extra_key: bytes) -> bytes:
        return self._hash(self._root, extra_key) if extra_key else self._root

    def _forget(self, entry: RememberedBlock) -> None:
        del self._by_key[entry.key]
        self._drop(entry.block)

    def _keep(self, entry: RememberedBlock, block: int) -> None:
        entry.block = block
        self._by_block[block] = entry
        self._pool.keep(block)
        if self.listener is not None:
            self.listener.kept(entry.key, block)

    def _drop(self, block: int) -> None:
        if self.listener is not None:
            self.listener.dropped(block)
        del self._by_block[block]
        self._pool.drop(block)

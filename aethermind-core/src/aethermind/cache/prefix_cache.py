"""Prefix caching: the contract with the KV cache, and a prefix cache that finds full blocks by a chain of hashes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Protocol

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.groups import FREED, live_blocks, num_hidden_blocks

__all__ = ["HashedPrefixCache", "NoPrefixCache", "PrefixCache", "PrefixCacheListener", "chain_hash"]


class PrefixCache(Protocol):
    """Finds blocks by the tokens they hold, and keeps one reference of its own to each cached block.

    An `extra_key` stands for all that the content depends on besides tokens and model, such as images in the prompt.
    Blocks are shared only within one `extra_key`.
    """

    @property
    def num_evictable(self) -> int:
        """Blocks that only the prefix cache references, which `evict` can free."""
        ...

    def match(self, token_ids: Sequence[int], extra_key: bytes = b"") -> Sequence[int]:
        """Return the full blocks of the longest cached prefix of `token_ids`, in order, without a new reference."""
        ...

    def match_groups(self, token_ids: Sequence[int], extra_key: bytes = b"") -> Sequence[Sequence[int]]:
        """Return the longest cached prefix's blocks by group, `FREED` for those before its window; empty if none."""
        ...

    def publish(
        self,
        token_ids: Sequence[int],
        blocks: Sequence[int],
        extra_key: bytes = b"",
        window_blocks: Sequence[Sequence[int]] = (),
    ) -> None:
        """Record that `blocks`, all full, hold `token_ids`; acquire those that are to be cached.

        `window_blocks` are the blocks of the same tokens in each further group, `FREED` for those before its window.
        """
        ...

    def evict(self, num_blocks: int) -> None:
        """Free up to `num_blocks` blocks that no sequence references, the least valuable first."""
        ...

    def forget(self, block: int) -> None:
        """Stop caching a block, which the only sequence that uses it is about to change."""
        ...


class NoPrefixCache:
    """A prefix cache that caches nothing."""

    __slots__ = ()

    @property
    def num_evictable(self) -> int:
        """Always 0."""
        return 0

    def match(self, token_ids: Sequence[int], extra_key: bytes = b"") -> Sequence[int]:
        """Return no blocks."""
        return ()

    def match_groups(self, token_ids: Sequence[int], extra_key: bytes = b"") -> Sequence[Sequence[int]]:
        """Return no blocks."""
        return ()

    def publish(
        self,
        token_ids: Sequence[int],
        blocks: Sequence[int],
        extra_key: bytes = b"",
        window_blocks: Sequence[Sequence[int]] = (),
    ) -> None:
        """Do nothing."""

    def evict(self, num_blocks: int) -> None:
        """Free nothing."""

    def forget(self, block: int) -> None:
        """Do nothing."""


_TOKEN_TYPE = "q"
_TOKEN_BYTES = array(_TOKEN_TYPE).itemsize


def chain_hash(parent: bytes, content: bytes) -> bytes:
    """Return the key of a block: a 16-byte hash of its content and, through `parent`, of all blocks before it."""
    return blake2b(parent + content, digest_size=16).digest()


class PrefixCacheListener(Protocol):
    """A listener for blocks that enter and leave a prefix cache."""

    def block_cached(self, key: bytes, block: int) -> None:
        """`block` was cached under `key`; it is full, and is not written until `block_evicted`."""
        ...

    def block_evicted(self, block: int) -> None:
        """`block` is about to leave the cache; once this returns, sequences may write to it."""
        ...


class CachedBlock:
    """A cached block: its tokens, and as `parent` the block before it (for a first block: the extra key).

    `companions` are the cached blocks of the same tokens in the groups with a window, `FREED` where there is none.
    """

    __slots__ = ("block", "companions", "key", "num_pins", "parent", "tokens")

    def __init__(
        self, key: bytes, parent: CachedBlock | bytes, tokens: bytes, block: int, num_companions: int = 0
    ) -> None:
        self.num_pins = 0
        self.companions = [FREED] * num_companions
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.block = block


class HashedPrefixCache:
    """Caches every published full block, and evicts the least recently used first.

    An entry is found by its hash, and used only if its tokens equal those looked up and its parent is the entry found
    before it. So a hash collision prevents a reuse, but never returns blocks of other tokens. An entry whose parent was
    evicted can no longer be reached; it is replaced when its tokens are published again, or evicted later. Sequences
    release their last block first, so the end of a prefix is usually evicted before its beginning. Not thread-safe.

    The chain consists of blocks of group 0 (see `groups`). Blocks of groups with a window are cached beside them, as
    companions. A prefix is matched only if the companions of each window cover all that the next token sees.
    Evicting a companion shortens what can be matched; evicting a block of the chain evicts its companions, too.
    """

    __slots__ = ("_block_size", "_by_block", "_by_key", "_hash", "_pool", "_root", "_windows", "listeners", "salt")

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        salt: bytes = b"",
        *,
        hash: Callable[[bytes, bytes], bytes] = chain_hash,
        windows: Sequence[int] = (),
    ) -> None:
        """Cache blocks of `pool`, each of `block_size` tokens.

        `salt` stands for all that the content of a block depends on besides tokens: model, adapter, quantisation,
        tenant. `windows` are those of `KVCacheSpec.windows`.
        """
        self._windows = tuple(windows)
        self._pool = pool
        self._block_size = block_size
        self._hash = hash
        self.listeners: list[PrefixCacheListener] = []
        """Receive blocks that are cached and evicted from now on."""
        self.salt = salt
        self._root = hash(b"", salt)
        self._by_key: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}

    @property
    def num_blocks(self) -> int:
        """Cached blocks of all groups, including those in use by sequences."""
        return len(self._by_block)

    @property
    def num_evictable(self) -> int:
        """Cached blocks that no sequence uses."""
        return self._pool.num_idle

    def keys(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[bytes]:
        """Return the keys of the full blocks of `token_ids`, in order, whether they are cached or not."""
        content, stride = array(_TOKEN_TYPE, token_ids).tobytes(), self._block_size * _TOKEN_BYTES
        ends = range(stride, len(content) + 1, stride)
        chain = accumulate(
            (content[end - stride : end] for end in ends), self._hash, initial=self._first_key(extra_key)
        )
        return list(chain)[1:]

    def key_of(self, block: int) -> bytes:
        """Return the key of a cached block."""
        return self._by_block[block].key

    def ancestors(self, block: int) -> Iterator[int]:
        """Iterate over the cached blocks before a block of group 0, from the last to the first."""
        parent = self._by_block[block].parent
        while isinstance(parent, CachedBlock) and self._by_key.get(parent.key) is parent:
            yield parent.block
            parent = parent.parent

    def match(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[int]:
        """Return the full blocks of the longest cached prefix of `token_ids`, in order, without a new reference.

        With several groups these are the blocks of group 0.
        """
        return [entry.block for entry in self._usable_prefix(self._cached_chain(token_ids, extra_key))]

    def match_groups(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[list[int]]:
        """Return the blocks of the longest cached prefix by group, `FREED` for those before the group's window."""
        entries = self._usable_prefix(self._cached_chain(token_ids, extra_key))
        num_tokens = len(entries) * self._block_size
        tables = [[entry.block for entry in entries]]
        for group, window in enumerate(self._windows):
            hidden = num_hidden_blocks(num_tokens, window, self._block_size)
            tables.append([FREED] * hidden + [entry.companions[group] for entry in entries[hidden:]])
        return tables

    def _usable_prefix(self, entries: list[CachedBlock]) -> list[CachedBlock]:
        """Return the longest prefix of a chain after which each window has all companions that the next token sees."""
        if not self._windows:
            return entries
        num_consecutive = [0] * len(self._windows)  # by group: companions without a gap up to the current block
        longest = 0
        for end, entry in enumerate(entries, start=1):
            for group, companion in enumerate(entry.companions):
                num_consecutive[group] = 0 if companion == FREED else num_consecutive[group] + 1
            if all(
                end - num_hidden_blocks(end * self._block_size, window, self._block_size) <= count
                for window, count in zip(self._windows, num_consecutive, strict=True)
            ):
                longest = end
        return entries[:longest]

    def pin(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[CachedBlock]:
        """Pin the cached blocks of the longest prefix: they are evicted last, until `unpin`. Pins are counted."""
        entries = self._cached_chain(token_ids, extra_key)
        for entry in entries:
            entry.num_pins += 1
        return entries

    def unpin(self, pinned: Sequence[CachedBlock]) -> None:
        """Undo a `pin`, given its result. Blocks that were evicted since are allowed."""
        for entry in pinned:
            entry.num_pins -= 1
            if not entry.num_pins:
                for block in (entry.block, *live_blocks(entry.companions)):
                    self._pool.promote(block)

    def _cached_chain(self, token_ids: Sequence[int], extra_key: bytes) -> list[CachedBlock]:
        """Return the cached blocks of group 0 of the longest cached prefix, whatever the windows need."""
        entries: list[CachedBlock] = []
        if not self._by_key:
            return entries
        parent: CachedBlock | bytes = extra_key
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

    def publish(
        self,
        token_ids: Sequence[int],
        blocks: Sequence[int],
        extra_key: bytes = b"",
        window_blocks: Sequence[Sequence[int]] = (),
    ) -> None:
        """Cache `blocks`, all full and in use, under `token_ids`, and beside them the `window_blocks` of each group.

        A cached block with the same content is kept if a sequence uses it; an idle one is replaced by the new block.
        """
        content, stride = array(_TOKEN_TYPE, token_ids).tobytes(), self._block_size * _TOKEN_BYTES
        parent: CachedBlock | bytes = extra_key
        key = self._first_key(extra_key)
        for index, block in enumerate(blocks):
            tokens = content[index * stride : (index + 1) * stride]
            key = self._hash(key, tokens)
            entry = self._by_key.get(key)
            if entry is not None and (entry.tokens != tokens or entry.parent != parent):
                self._remove_entry(entry)
                entry = None
            if entry is None:
                entry = self._by_key[key] = CachedBlock(key, parent, tokens, block, len(self._windows))
                self._add_block(entry, block)
            elif entry.block != block and self._pool.is_idle(entry.block):
                self._remove_block(entry.block)
                self._add_block(entry, block)
            for group, table in enumerate(window_blocks):
                self._publish_companion(entry, group, table[index])
            parent = entry

    def _publish_companion(self, entry: CachedBlock, group: int, block: int) -> None:
        cached = entry.companions[group]
        if block in (FREED, cached) or (cached != FREED and not self._pool.is_idle(cached)):
            return
        if cached != FREED:
            self._remove_companion(entry, group)
        entry.companions[group] = block
        self._by_block[block] = entry
        self._pool.keep(block)

    def evict(self, num_blocks: int) -> None:
        """Free `num_blocks` blocks that no sequence uses, or all: the least recently used first, pinned ones last.

        With the blocks of groups with a window it may free a few more.
        """
        pool = self._pool
        num_wanted = pool.num_free + min(num_blocks, pool.num_idle)
        while pool.num_free < num_wanted:
            block = self._next_to_evict()
            entry = self._by_block[block]
            if entry.block == block:
                self._remove_entry(entry)
            else:
                self._remove_companion(entry, entry.companions.index(block))

    def forget(self, block: int) -> None:
        """Stop caching a block of group 0 with its companions; later blocks of its prefix are no longer found."""
        entry = self._by_block.get(block)
        if entry is not None and entry.block == block:
            self._remove_entry(entry)

    def _next_to_evict(self) -> int:
        """Return the next block to evict.

        A pinned block is moved once to the pool's list of blocks that are evicted last, so later calls find other
        candidates first.
        """
        while True:
            block = self._pool.eviction_candidate()
            if not (self._by_block[block].num_pins and self._pool.demote(block)):
                return block

    def _first_key(self, extra_key: bytes) -> bytes:
        """Return the key that the first block's key is hashed from."""
        return self._hash(self._root, extra_key) if extra_key else self._root

    def _remove_entry(self, entry: CachedBlock) -> None:
        del self._by_key[entry.key]
        self._remove_block(entry.block)
        for group, companion in enumerate(entry.companions):
            if companion != FREED:
                self._remove_companion(entry, group)

    def _remove_companion(self, entry: CachedBlock, group: int) -> None:
        block, entry.companions[group] = entry.companions[group], FREED
        del self._by_block[block]
        self._pool.drop(block)

    def _add_block(self, entry: CachedBlock, block: int) -> None:
        entry.block = block
        self._by_block[block] = entry
        self._pool.keep(block)
        for listener in self.listeners:
            listener.block_cached(entry.key, block)

    def _remove_block(self, block: int) -> None:
        for listener in self.listeners:
            listener.block_evicted(block)
        del self._by_block[block]
        self._pool.drop(block)

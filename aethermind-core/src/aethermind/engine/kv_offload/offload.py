"""KV offload of one engine: requests wait briefly for the stored blocks of their prompts, and new blocks are stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from aethermind.cache.outcome import CacheOutcome
from aethermind.engine.kv_offload.block_bytes import BlockStager
from aethermind.engine.kv_offload.health import CircuitBreaker, KVStoreStats, WarnOnce
from aethermind.engine.kv_offload.reader import Fetch, StoreReader
from aethermind.engine.kv_offload.states import StateOffload
from aethermind.engine.kv_offload.writer import StoreWriter
from aethermind.engine.scheduling.preemption_cost import SwapVsRecomputeCosts

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aethermind.cache.kv_cache import KVCache
    from aethermind.cache.prefix_cache import HashedPrefixCache
    from aethermind.cache.serialization import StoredBlocks
    from aethermind.cache.stores.kv_store import KVStore
    from aethermind.engine.kv_memory.memory import KVMemory
    from aethermind.engine.requests.request import Request

__all__ = ["FetchCosts", "KVOffload"]

_EMA_WEIGHT = 0.3
_HALF_LIFE_S = 30.0
_MARGIN = 2.0
"""How many times faster computing must be to be preferred, because fetching leaves the device to other requests."""


class FetchCosts:
    """Compares measured seconds per fetched byte with the engine's seconds per computed token. Mutable.

    Without fetches there are no measurements, so the estimate decays with a half-life of `_HALF_LIFE_S`.
    """

    def __init__(self, engine: SwapVsRecomputeCosts, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._seconds_per_byte = 0.0
        self._measured_at = clock()

    def compute_seconds(self, num_tokens: int) -> float:
        """Estimate the seconds to compute `num_tokens` prompt tokens."""
        return num_tokens * self._engine.seconds_per_token

    def is_worth_fetching(self, num_bytes: int, num_tokens: int) -> bool:
        """Whether fetching `num_bytes` is expected to be not much slower than computing their `num_tokens`."""
        age_s = self._clock() - self._measured_at
        fetch_seconds = num_bytes * self._seconds_per_byte * 0.5 ** (age_s / _HALF_LIFE_S)
        return bool(fetch_seconds <= _MARGIN * self.compute_seconds(num_tokens))

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Record a fetch; `seconds` include the time in the reader's queue."""
        measured = seconds / num_bytes
        weight = _EMA_WEIGHT if self._seconds_per_byte else 1.0
        self._seconds_per_byte += weight * (measured - self._seconds_per_byte)
        self._measured_at = self._clock()


_FETCH_TIMEOUT_S = 2.0
"""The least timeout of a fetch; longer where computing the blocks is expected to take longer."""
_SLOW_READ_S = 1.0
_SLOW_WRITE_S = 10.0
"""Reads and writes that take longer count as failed."""
_FLUSH_TIMEOUT_S = 4.0
"""Time limit for writing pending blocks when the engine is closed."""
_POLL_TIMEOUT_S = 0.02
"""How long `arrived` waits for a block while no request can run."""
_LOAD_BYTES = 16 * 2**20
"""About how many bytes are copied to the device between two steps, so that running requests are hardly delayed."""
_SEQUENCE_ID = "blocks from a store"


class _PendingPrompt:
    """A prompt whose blocks from index `first_block` on are being fetched, with the requests that wait for them."""

    __slots__ = ("deadline", "extra_key", "fetch", "first_block", "num_loaded", "requests", "started_at", "token_ids")

    def __init__(self, request: Request, fetch: Fetch, first_block: int, started_at: float, deadline: float) -> None:
        self.requests = [request]
        self.token_ids = request.prompt_token_ids
        self.extra_key = request.extra_key
        self.fetch = fetch
        self.first_block = first_block
        self.num_loaded = 0
        self.started_at = started_at
        self.deadline = deadline


class KVOffload:
    """Connects the prefix cache of an engine to a KV store. All calls come from the engine's thread.

    Outputs do not depend on the store: blocks that cannot be fetched, or that are damaged, are computed. If a store
    fails, a request waits for `_FETCH_TIMEOUT_S` (or as long as computing is expected to take, if that is longer), and
    one warning is logged.
    """

    def __init__(
        self,
        store: KVStore,
        name: str,
        cache: KVCache,
        prefix_cache: HashedPrefixCache,
        memory: KVMemory,
        costs: SwapVsRecomputeCosts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use `store`, called `name` in messages; the salt of `prefix_cache` is the model's fingerprint."""
        spec, fingerprint = cache.spec, prefix_cache.salt.decode()
        self._store = store
        self._cache = cache
        self._prefix_cache = prefix_cache
        self._block_size = spec.block_size
        self._bytes_per_block = spec.bytes_per_block
        self._load_blocks = max(1, _LOAD_BYTES // max(1, spec.bytes_per_block))
        self._costs = FetchCosts(costs, clock)
        self._clock = clock
        self._warnings = WarnOnce(name)
        self._stats = KVStoreStats()
        self._incoming = BlockStager.of_blocks(memory, spec.bytes_per_block, fingerprint, is_concurrent=False)
        outgoing = BlockStager.of_blocks(memory, spec.bytes_per_block, fingerprint, is_concurrent=True)
        writing = CircuitBreaker(self._warnings, _SLOW_WRITE_S, clock)
        self._writer = StoreWriter(store, outgoing, spec.block_size, writing, self._stats)
        self._states: StateOffload | None = None
        if cache.snapshots is not None:
            self._states = StateOffload(store, cache, cache.snapshots, memory, fingerprint, writing)
        self._reader = StoreReader(
            store,
            self._incoming.unpack,
            CircuitBreaker(self._warnings, _SLOW_READ_S, clock),
            self._warnings,
            batch_blocks=self._incoming.max_blocks,
            max_arrived=2 * self._load_blocks,
            on_missing=self._writer.mark_missing,
            states=self._states,
            has_blocks=spec.has_attention,
        )
        self._prompts: dict[bytes, _PendingPrompt] = {}
        self._prompt_of: dict[Request, _PendingPrompt] = {}
        if spec.has_attention:
            prefix_cache.listeners.append(self._writer)

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for the store."""
        return len(self._prompt_of)

    @property
    def stats(self) -> KVStoreStats:
        """Counters of blocks so far."""
        counts = [self._stats] if self._states is None else [self._stats, self._states.stats]
        return replace(
            self._stats,
            num_stored=sum(each.num_stored for each in counts),
            num_dropped=sum(each.num_dropped for each in counts),
            num_errors=self._warnings.num_errors,
        )

    def fetch(self, request: Request, absent: Collection[bytes] = ()) -> bool:
        """Start to fetch the blocks of a prompt that are not in the prefix cache.

        Returns whether `request` has to wait until `arrived` returns it. `absent` are keys that the store lacks.
        """
        token_ids, extra_key, block_size = request.prompt_token_ids, request.extra_key, self._block_size
        num_known = self._cache.query(token_ids, extra_key) // block_size
        num_wanted = (len(token_ids) - 1) // block_size - num_known  # the last token is always computed
        if num_wanted <= 0 or (self._cache.is_recurrent and self._states is None):
            return False
        num_bytes = num_wanted * self._bytes_per_block + self._cache.spec.bytes_per_slot
        num_tokens = num_wanted * block_size
        if not self._reader.is_available or not self._costs.is_worth_fetching(num_bytes, num_tokens):
            self._stats.num_misses += num_wanted
            return False
        keys = self._prefix_cache.keys(token_ids[:-1], extra_key)[num_known:]
        if keys[0] in absent:
            self._stats.num_misses += num_wanted
            return False
        prompt = self._prompts.get(keys[0])
        if prompt is not None:  # the same first block is being fetched for another prompt; see `_end`
            prompt.requests.append(request)
        else:
            now = self._clock()
            deadline = now + max(_FETCH_TIMEOUT_S, self._costs.compute_seconds(num_tokens))
            prompt = self._prompts[keys[0]] = _PendingPrompt(
                request, self._reader.start(keys), num_known, now, deadline
            )
        self._prompt_of[request] = prompt
        return True

    def arrived(self, *, may_wait: bool) -> list[Request]:
        """Load the blocks that arrived since the last call; returns the requests that do not wait any longer.

        With `may_wait` the call waits briefly if no block has arrived.
        """
        if may_wait:
            self._reader.wait(_POLL_TIMEOUT_S)
        ready: list[Request] = []
        for prompt in list(self._prompts.values()):
            contents, is_done = self._reader.take(prompt.fetch, self._load_blocks)
            is_late = not is_done and self._clock() >= prompt.deadline
            if is_late:
                contents = self._reader.cancel(prompt.fetch)
            is_loaded = self._load(prompt, contents)
            if is_done and is_loaded:
                self._load_state(prompt)
            if is_done or is_late or not is_loaded:
                ready += self._end(prompt)
        return ready

    def cancel(self, request: Request) -> bool:
        """Stop waiting for a request's blocks; False if it does not wait."""
        prompt = self._prompt_of.pop(request, None)
        if prompt is None:
            return False
        prompt.requests.remove(request)
        if not prompt.requests:
            self._forget(prompt)
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until all blocks queued so far are in the store; False on timeout or if the store is failing."""
        are_blocks_written = self._writer.flush(timeout_s)
        return (self._states is None or self._states.flush(timeout_s)) and are_blocks_written

    def close(self) -> None:
        """Write pending blocks for at most `_FLUSH_TIMEOUT_S` seconds, and release all resources."""
        self._reader.close()
        deadline = time.monotonic() + _FLUSH_TIMEOUT_S
        self._writer.flush(_FLUSH_TIMEOUT_S)
        self._writer.close()
        if self._writer in self._prefix_cache.listeners:
            self._prefix_cache.listeners.remove(self._writer)
        if self._states is not None:
            self._states.close(max(0.0, deadline - time.monotonic()))
        try:
            self._store.close()
        except Exception as error:  # a store may be third-party code
            self._warnings.failed(error)

    def _load(self, prompt: _PendingPrompt, contents: Sequence[StoredBlocks]) -> bool:
        """Copy blocks to the device and publish them to the prefix cache; False if earlier blocks or free ones are
        missing.
        """
        if not contents:
            return True
        cache, block_size, token_ids = self._cache, self._block_size, prompt.token_ids
        begin = prompt.first_block + prompt.num_loaded
        end = begin + len(contents)
        opened = cache.open_to_load(_SEQUENCE_ID, token_ids[: end * block_size + 1], prompt.extra_key)
        num_cached = opened.num_cached_tokens // block_size
        new_contents = contents[max(num_cached - begin, 0) :]
        num_tokens = len(new_contents) * block_size
        is_useful = num_cached >= begin and cache.reserve(_SEQUENCE_ID, num_tokens).outcome is CacheOutcome.OK
        if is_useful:
            self._incoming.put(new_contents, cache.block_table(_SEQUENCE_ID)[end - len(new_contents) : end].tolist())
            cache.commit(_SEQUENCE_ID, num_tokens)
            self._writer.mark_stored(prompt.fetch.keys[prompt.num_loaded : prompt.num_loaded + len(contents)])
            prompt.num_loaded += len(contents)
        cache.release(_SEQUENCE_ID, token_ids[: end * block_size])
        return is_useful

    def _load_state(self, prompt: _PendingPrompt) -> None:
        """Publish the recurrent state at the end of the fetched blocks, if all of them are loaded."""
        fetched = prompt.fetch.state
        if self._states is not None and fetched is not None and fetched.num_blocks == prompt.num_loaded:
            num_tokens = (prompt.first_block + prompt.num_loaded) * self._block_size
            self._states.load(prompt.token_ids[:num_tokens], prompt.extra_key, fetched.content)

    def _end(self, prompt: _PendingPrompt) -> list[Request]:
        """End a fetch; returns the requests that do not wait any longer.

        Blocks of requests with other prompts are fetched again.
        """
        seconds = self._clock() - prompt.started_at
        self._forget(prompt)
        self._stats.num_hits += prompt.num_loaded
        self._stats.num_misses += len(prompt.fetch.keys) - prompt.num_loaded
        if prompt.num_loaded:
            num_bytes = prompt.num_loaded * self._bytes_per_block + self._cache.spec.bytes_per_slot
            self._costs.observe(num_bytes, seconds)
        for request in prompt.requests:
            del self._prompt_of[request]
        # With recurrent states no key is known to be absent: a longer prompt may have a state at another position.
        absent = frozenset() if self._states is not None else frozenset(prompt.fetch.keys[prompt.num_loaded :])
        return [
            request
            for request in prompt.requests
            if request.prompt_token_ids is prompt.token_ids or not self.fetch(request, absent)
        ]

    def _forget(self, prompt: _PendingPrompt) -> None:
        self._reader.cancel(prompt.fetch)
        del self._prompts[prompt.fetch.keys[0]]

"""One engine and one store: prompts wait a moment for what others have computed, and results go where others look."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from aethermind.cache.outcome import Outcome
from aethermind.engine.kv_offload.block_bytes import BlockBytes
from aethermind.engine.kv_offload.costs import FetchCosts
from aethermind.engine.kv_offload.health import Complaints, StoreHealth
from aethermind.engine.kv_offload.reader import Fetch, StoreReader
from aethermind.engine.kv_offload.stats import KVStoreStats
from aethermind.engine.kv_offload.writer import StoreWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from aethermind.cache.container import StoredBlocks
    from aethermind.cache.hashed_prefix_cache import HashedPrefixCache
    from aethermind.cache.kv_cache import KVCache
    from aethermind.cache.stores.kv_store import KVStore
    from aethermind.engine.kv_memory.memory import KVMemory
    from aethermind.engine.requests.request import Request
    from aethermind.engine.scheduling.preemption import MeasuredCosts

__all__ = ["KVOffload"]

_PATIENCE_S = 2.0
"""How long a request waits for a store, at least."""
_SLOW_READ_S = 1.0
_SLOW_WRITE_S = 10.0
"""Calls that take longer count as failed."""
_FLUSH_S = 4.0
_POLL_S = 0.02
_LOAD_BYTES = 16 * 2**20
"""What is copied to the device between two steps, about: few enough that running requests hardly notice."""
_SEQUENCE = "blocks from a store"


class _Prompt:
    """A prompt whose blocks from `num_blocks` on are being fetched, and the requests that wait for it."""

    __slots__ = ("deadline", "extra_key", "fetch", "num_blocks", "num_loaded", "requests", "started_at", "token_ids")

    def __init__(self, request: Request, fetch: Fetch, num_blocks: int, started_at: float, deadline: float) -> None:
        self.requests = [request]
        self.token_ids = request.prompt_token_ids
        self.extra_key = request.extra_key
        self.fetch = fetch
        self.num_blocks = num_blocks
        self.num_loaded = 0
        self.started_at = started_at
        self.deadline = deadline


class KVOffload:
    """Between the prefix cache of an engine and a store. All calls come from the engine's thread.

    Whatever happens to the store, requests get the same answers: from what is fetched, which is checked, or from what
    is computed. Trouble costs time (a request waits `_PATIENCE_S`, or as long as computing should take, if that is
    longer) and one warning.
    """

    def __init__(
        self,
        store: KVStore,
        name: str,
        cache: KVCache,
        prefix_cache: HashedPrefixCache,
        memory: KVMemory,
        costs: MeasuredCosts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take part in `store`, called `name` in messages; the salt of `prefix_cache` is the model's fingerprint."""
        spec, fingerprint = cache.spec, prefix_cache.salt.decode()
        self._store = store
        self._cache = cache
        self._prefix_cache = prefix_cache
        self._block_size = spec.block_size
        self._bytes_per_block = spec.bytes_per_block
        self._load_blocks = max(1, _LOAD_BYTES // spec.bytes_per_block)
        self._costs = FetchCosts(costs, clock)
        self._clock = clock
        self._complaints = Complaints(name)
        self._stats = KVStoreStats()
        self._incoming = BlockBytes(memory, spec.bytes_per_block, fingerprint, is_beside_steps=False)
        outgoing = BlockBytes(memory, spec.bytes_per_block, fingerprint, is_beside_steps=True)
        writing = StoreHealth(self._complaints, _SLOW_WRITE_S, clock)
        self._writer = StoreWriter(store, outgoing, spec.block_size, writing, self._stats)
        self._reader = StoreReader(
            store,
            self._incoming.unpack,
            StoreHealth(self._complaints, _SLOW_READ_S, clock),
            self._complaints,
            batch_blocks=self._incoming.max_blocks,
            most_arrived=2 * self._load_blocks,
            on_missing=self._writer.unlearn,
        )
        self._prompts: dict[bytes, _Prompt] = {}
        self._prompt_of: dict[Request, _Prompt] = {}
        prefix_cache.listener = self._writer

    @property
    def num_waiting(self) -> int:
        """Requests that wait for the store."""
        return len(self._prompt_of)

    @property
    def stats(self) -> KVStoreStats:
        """What became of blocks so far."""
        return replace(self._stats, num_errors=self._complaints.num_errors)

    def fetch(self, request: Request, lacking: Collection[bytes] = ()) -> bool:
        """Look for what the device does not have of a prompt; whether `request` is to wait, until `arrived` has it.

        The store is known not to have the `lacking` keys.
        """
        token_ids, extra_key, block_size = request.prompt_token_ids, request.extra_key, self._block_size
        num_known = self._cache.query(token_ids, extra_key) // block_size
        num_wanted = (len(token_ids) - 1) // block_size - num_known  # the last token is always computed
        if num_wanted <= 0:
            return False
        num_bytes = num_wanted * self._bytes_per_block
        num_tokens = num_wanted * block_size
        if not self._reader.is_available or not self._costs.is_worth_fetching(num_bytes, num_tokens):
            self._stats.num_misses += num_wanted
            return False
        keys = self._prefix_cache.keys(token_ids[:-1], extra_key)[num_known:]
        if keys[0] in lacking:
            self._stats.num_misses += num_wanted
            return False
        prompt = self._prompts.get(keys[0])
        if prompt is not None:  # begins like one that is being fetched: looks again when that one is there
            prompt.requests.append(request)
        else:
            now = self._clock()
            deadline = now + max(_PATIENCE_S, self._costs.compute_seconds(num_tokens))
            prompt = self._prompts[keys[0]] = _Prompt(request, self._reader.start(keys), num_known, now, deadline)
        self._prompt_of[request] = prompt
        return True

    def arrived(self, *, may_wait: bool) -> list[Request]:
        """Load what has come since the last call; the requests that need not wait any longer.

        With `may_wait` it waits for a moment where nothing has come.
        """
        if may_wait:
            self._reader.wait(_POLL_S)
        ready: list[Request] = []
        for prompt in list(self._prompts.values()):
            contents, is_done = self._reader.take(prompt.fetch, self._load_blocks)
            is_late = not is_done and self._clock() >= prompt.deadline
            if is_late:
                contents = self._reader.give_up(prompt.fetch)
            is_loaded = self._load(prompt, contents)
            if is_done or is_late or not is_loaded:
                ready += self._end(prompt)
        return ready

    def cancel(self, request: Request) -> bool:
        """Let a request wait no longer; False if it does not wait."""
        prompt = self._prompt_of.pop(request, None)
        if prompt is None:
            return False
        prompt.requests.remove(request)
        if not prompt.requests:
            self._forget(prompt)
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until what is computed so far is in the store; False if that takes longer or the store is failing."""
        return self._writer.flush(timeout_s)

    def close(self) -> None:
        """Write what waits to be written, as far as the store lets us, and give everything back."""
        self._reader.close()
        self._writer.flush(_FLUSH_S)
        self._writer.close()
        self._prefix_cache.listener = None
        try:
            self._store.close()
        except Exception as error:  # a store is anybody's code
            self._complaints.failed(error)

    def _load(self, prompt: _Prompt, contents: Sequence[StoredBlocks]) -> bool:
        """Copy blocks to the device and let the prefix cache remember them; False if that is no use any more."""
        if not contents:
            return True
        cache, block_size, token_ids = self._cache, self._block_size, prompt.token_ids
        begin = prompt.num_blocks + prompt.num_loaded
        end = begin + len(contents)
        opened = cache.open(_SEQUENCE, token_ids[: end * block_size + 1], prompt.extra_key)
        num_there = opened.num_cached_tokens // block_size
        missing = contents[max(num_there - begin, 0) :]
        num_tokens = len(missing) * block_size
        is_useful = num_there >= begin and cache.reserve(_SEQUENCE, num_tokens).outcome is Outcome.OK
        if is_useful:
            self._incoming.put(missing, cache.block_table(_SEQUENCE)[end - len(missing) : end].tolist())
            cache.commit(_SEQUENCE, num_tokens)
            self._writer.learn(prompt.fetch.keys[prompt.num_loaded : prompt.num_loaded + len(contents)])
            prompt.num_loaded += len(contents)
        cache.release(_SEQUENCE, token_ids[: end * block_size])
        return is_useful

    def _end(self, prompt: _Prompt) -> list[Request]:
        """Take leave of a prompt; whoever waited for it and needs no more of the store."""
        seconds = self._clock() - prompt.started_at
        self._forget(prompt)
        self._stats.num_hits += prompt.num_loaded
        self._stats.num_misses += len(prompt.fetch.keys) - prompt.num_loaded
        if prompt.num_loaded:
            self._costs.observe(prompt.num_loaded * self._bytes_per_block, seconds)
        for request in prompt.requests:
            del self._prompt_of[request]
        lacking = frozenset(prompt.fetch.keys[prompt.num_loaded :])
        return [
            request
            for request in prompt.requests
            if request.prompt_token_ids is prompt.token_ids or not self.fetch(request, lacking)
        ]

    def _forget(self, prompt: _Prompt) -> None:
        self._reader.give_up(prompt.fetch)
        del self._prompts[prompt.fetch.keys[0]]

"""Sessions: what their last turn left in the prefix cache is given up last, for a while, within a budget."""

from __future__ import annotations

import pytest
from tests.core.engine.engines import open_engine

from aethermind import RequestOptions, Runtime, SamplingParams
from aethermind.cache.block_pool import BlockPool
from aethermind.cache.prefix_cache import HashedPrefixCache
from aethermind.engine.engine import Engine
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.parts import EngineParts
from aethermind.engine.requests.sessions import Sessions

TURN = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)


def make(num_blocks: int = 8) -> tuple[BlockPool, HashedPrefixCache]:
    pool = BlockPool(num_blocks)
    return pool, HashedPrefixCache(pool, 2)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def remember(pool: BlockPool, cache: HashedPrefixCache, token_ids: list[int]) -> None:
    """Let a sequence of these tokens come and go."""
    blocks = pool.allocate(len(token_ids) // 2)
    assert blocks is not None
    cache.publish(token_ids, blocks)
    for block in reversed(blocks):
        pool.release(block)


def known(cache: HashedPrefixCache, token_ids: list[int]) -> int:
    return len(cache.match(token_ids)) * 2


def test_blocks_of_a_session_are_evicted_last(clock: Clock) -> None:
    pool, cache = make()
    sessions = Sessions(cache, 9, 8, 60.0, clock)
    old, new = [1, 2, 3, 4], [5, 6, 7, 8, 9, 10]
    remember(pool, cache, old)
    sessions.keep("old", old, b"")
    remember(pool, cache, new)
    cache.evict(3)
    assert (known(cache, old), known(cache, new)) == (4, 0)
    cache.evict(1)
    assert known(cache, old) < 4  # nothing else was left
    clock.now = 60.0
    sessions.expire()
    assert (len(sessions), sessions.num_blocks) == (0, 0)


def test_the_next_turn_replaces_the_pins_of_the_last(clock: Clock) -> None:
    pool, cache = make()
    sessions = Sessions(cache, 9, 8, 60.0, clock)
    first, second, other = [1, 2, 3, 4], [1, 2, 9, 9], [5, 6, 7, 8]
    for turn in (first, second):
        remember(pool, cache, turn)
        sessions.keep("one", turn, b"")
    remember(pool, cache, other)
    assert (len(sessions), sessions.num_blocks) == (1, 2)
    cache.evict(3)
    assert (known(cache, second), known(cache, first), known(cache, other)) == (4, 2, 0)


def test_sessions_are_bounded_by_number_blocks_and_time(clock: Clock) -> None:
    pool, cache = make()
    sessions = Sessions(cache, 2, 3, 60.0, clock)
    turns = {name: [start, start, start + 1, start + 1] for start, name in ((10, "a"), (20, "b"), (30, "c"))}
    for name, turn in turns.items():
        remember(pool, cache, turn)
        sessions.keep(name, turn, b"")
    assert (len(sessions), sessions.num_blocks) == (1, 2)  # two of them would be four blocks
    clock.now = 50.0
    sessions.keep("c", turns["c"][:2], b"")
    clock.now = 59.0
    sessions.keep("a", turns["a"][:2], b"")
    assert (len(sessions), sessions.num_blocks) == (2, 2)
    clock.now = 110.0
    assert (len(sessions), sessions.num_blocks) == (1, 2)  # who counts changes nothing
    sessions.expire()
    assert (len(sessions), sessions.num_blocks) == (1, 1)
    clock.now = 111.0
    sessions.keep("d", [99, 99], b"")  # of which nothing is known
    assert (len(sessions), sessions.num_blocks) == (2, 1)


def test_pins_of_evicted_blocks_are_harmless(clock: Clock) -> None:
    pool, cache = make(2)
    sessions = Sessions(cache, 9, 2, 60.0, clock)
    remember(pool, cache, [1, 1, 2, 2])
    sessions.keep("one", [1, 1, 2, 2], b"")
    cache.evict(2)
    remember(pool, cache, [3, 3, 4, 4])
    clock.now = 99.0
    sessions.expire()
    cache.evict(1)
    assert known(cache, [3, 3, 4, 4]) == 2
    assert pool.num_free == 1


def run(engine: Engine, name: str, token_ids: list[int], session: str = "", salt: bytes = b"") -> tuple[int, list[int]]:
    """Serve a turn; returns how many of its tokens were known, and all its tokens."""
    engine.add_request(name, token_ids, TURN, options=RequestOptions(session=session, cache_salt=salt))
    while engine.has_unfinished:
        outputs = engine.step()
    return outputs[0].num_cached_tokens, token_ids + outputs[0].outputs[0].token_ids


def test_a_session_survives_other_requests(runtime: Runtime) -> None:
    """The next turn, an edited one and one asked again all find what they have in common with the last."""
    for session, expected in (("mine", 12), ("", 0)):
        engine = open_engine(runtime, block_size=4, num_kv_blocks=8)
        prompt = [5, 9, 13, 17, 21, 25, 29, 33, 37, 41]
        _, context = run(engine, "first", prompt, session, b"salt")
        for other in range(6):
            run(engine, f"other {other}", [100 + other] * 14)
        assert run(engine, "next", [*context, 7, 8], session, b"salt")[0] == expected
        if session:
            assert run(engine, "again", prompt, session, b"salt")[0] == 8
            assert run(engine, "edited", [*prompt[:5], 1, 2, 3], session, b"salt")[0] == 4
            assert run(engine, "another session", prompt, session)[0] == 0


def test_an_expired_session_is_unpinned(runtime: Runtime, clock: Clock) -> None:
    options = {"device": "numpy", "dtype": "float32", "max_model_len": 32, "block_size": 4, "num_kv_blocks": 8}
    parts = EngineParts.of(runtime, "demo", **options, session_ttl=60.0)
    engine = Engine(parts, parts.compiled.source.tokenizer(), clock=clock)
    run(engine, "first", [5, 9, 13, 17, 21, 25, 29, 33, 37, 41], "mine")
    assert EngineStats.of(engine).num_sessions == 1
    clock.now += 60
    assert EngineStats.of(engine).num_sessions == 0
    run(engine, "other", [100] * 6)
    assert engine.sessions.num_blocks == 0


def test_an_aborted_turn_is_not_pinned(runtime: Runtime) -> None:
    engine = open_engine(runtime, block_size=4, num_kv_blocks=8)
    _, context = run(engine, "first", [5, 9, 13, 17, 21, 25, 29, 33, 37, 41], "mine")
    engine.add_request("cancelled", [*context, 1, 2, 3, 4], TURN, options=RequestOptions(session="mine"))
    engine.step()
    engine.abort("cancelled")
    assert engine.sessions.num_blocks == 3
    cached, whole = run(engine, "next", [*context, 7, 8], "mine")
    fresh = open_engine(runtime, block_size=4, num_kv_blocks=8)
    assert (cached, whole) == (12, run(fresh, "next", [*context, 7, 8])[1])

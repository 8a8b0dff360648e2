"""Engines that share a KV store: reuse changes counters and never tokens, whatever happens to the store."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.core.engine.kv_offload.engines import (
    NUM_BLOCKS,
    PARAMS,
    PROMPT,
    OpenEngine,
    flush,
    opening,
    run,
    stats,
    tokens,
)
from tests.core.engine.kv_offload.stores import Store

from aethermind import RequestOptions, Runtime
from aethermind.engine.engine import Engine
from aethermind.engine.kv_offload import KVOffload
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.parts import EngineParts
from aethermind.errors import InvalidArgumentError


@pytest.fixture
def open_engine(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenEngine]:
    with opening(runtime, monkeypatch) as start:
        yield start


def fill(open_engine: OpenEngine, store: Store, **options: Any) -> list[list[int]]:
    """Let an engine put PROMPT into the store; returns its answer."""
    engine = open_engine(store, **options)
    answer = tokens(run(engine, PROMPT))
    engine.close()
    return answer


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_blocks_that_one_engine_computed_are_reused_by_another(
    open_engine: OpenEngine, device: str, kv_cache_dtype: str
) -> None:
    store, options = Store(), {"device": device, "kv_cache_dtype": kv_cache_dtype}
    first = open_engine(store, **options)
    (expected,) = run(first, PROMPT)
    flush(first)
    assert (expected.num_cached_tokens, stats(first).num_hits, stats(first).num_misses) == (0, 0, NUM_BLOCKS)
    assert stats(first).num_stored == len(store.values) == NUM_BLOCKS + 1, "the answer fills one more"
    second = open_engine(store, **options)
    (output,) = run(second, PROMPT)
    assert tokens([output]) == tokens([expected])
    assert output.num_cached_tokens == 4 * NUM_BLOCKS
    assert (stats(second).num_hits, stats(second).num_misses, stats(second).num_errors) == (NUM_BLOCKS, 0, 0)
    flush(second)
    assert stats(second).num_stored == 1, "what came from the store is not written again"


def test_real_bytes_move(open_engine: OpenEngine, device: str) -> None:
    """Every tensor of every layer is the same in the other engine, wherever its blocks lie."""
    store, content = Store(), []
    for prompts in ([PROMPT], [[9] * 20, PROMPT]):
        engine = open_engine(store, device=device, kv_cache_dtype="int8")
        for prompt in prompts:
            run(engine, prompt)
        flush(engine)
        engine.cache.open("look", PROMPT)
        blocks = list(engine.cache.block_table("look"))
        engine.cache.release("look")
        content.append({name: tensor.numpy()[blocks] for name, tensor in engine.runner.kv_memory.tensors.items()})
        assert stats(engine).num_hits == (NUM_BLOCKS if len(prompts) > 1 else 0)
    assert len(blocks) == NUM_BLOCKS
    assert all(np.array_equal(content[0][name], content[1][name]) for name in content[0])
    assert any("scale" in name for name in content[0])


def test_a_prompt_that_extends_a_stored_one_reuses_it(open_engine: OpenEngine) -> None:
    store = Store()
    fill(open_engine, store)
    engine = open_engine(store)
    longer = [*PROMPT[:30], *range(300, 340)]
    (output,) = run(engine, longer)
    assert output.num_cached_tokens == 28
    (again,) = run(engine, longer)
    assert (again.num_cached_tokens, tokens([again])) == (68, tokens([output]))
    assert stats(engine).num_hits == 7


def test_prompts_that_begin_alike_fetch_once(open_engine: OpenEngine) -> None:
    store = Store()
    (answer,) = fill(open_engine, store)
    engine = open_engine(store)
    shorter = PROMPT[:25]
    outputs = run(engine, PROMPT, shorter, PROMPT, PROMPT[:1])
    assert [output.num_cached_tokens for output in outputs] == [48, 24, 48, 0]
    assert tokens(outputs)[0] == tokens(outputs)[2] == answer
    assert stats(engine).num_hits == NUM_BLOCKS


def test_several_answers_share_what_was_fetched(open_engine: OpenEngine) -> None:
    store = Store()
    params = replace(PARAMS, n=3, temperature=1.0, seed=4)
    expected = tokens(run(open_engine(Store()), PROMPT, params=params))
    fill(open_engine, store)
    (output,) = run(open_engine(store), PROMPT, params=params)
    assert tokens([output]) == expected
    assert output.num_cached_tokens == 48


def test_other_dtypes_do_not_share_blocks(open_engine: OpenEngine) -> None:
    store = Store()
    fill(open_engine, store)
    for options in ({"kv_cache_dtype": "int8"}, {"block_size": 2}, {"load_format": "dummy"}, {"dtype": "bfloat16"}):
        (output,) = run(open_engine(store, **options), PROMPT)
        assert output.num_cached_tokens == 0, options


def test_tenants_do_not_share(open_engine: OpenEngine) -> None:
    """What one salt's requests have stored is for requests of that salt, whichever engine serves them."""
    store = Store()

    def num_cached(salt: bytes) -> int:
        engine = open_engine(store)
        engine.add_request("0", PROMPT, PARAMS, options=RequestOptions(cache_salt=salt))
        while engine.has_unfinished:
            (output,) = engine.step() or [None]
        engine.close()
        assert output is not None
        return output.num_cached_tokens

    salts = [b"", b"one tenant", b"another"]
    assert [num_cached(salt) for salt in salts] == [0, 0, 0]
    assert [num_cached(salt) for salt in salts] == [48, 48, 48]


def flip(data: bytes) -> bytes:
    return data[:-7] + bytes([data[-7] ^ 1]) + data[-6:]


DAMAGES: dict[str, Callable[[dict[bytes, bytes], bytes], Any]] = {
    "a bit": lambda values, key: flip(values[key]),
    "its end": lambda values, key: values[key][:-1],
    "all of it": lambda values, key: b"",
    "half the header": lambda values, key: values[key][:100],
    "no container": lambda values, key: b"<html>502 Bad Gateway</html>" * 100,
    "an older format": lambda values, key: values[key].replace(b"kv-blocks/1", b"kv-blocks/0"),
    "another block": lambda values, key: next(value for other, value in values.items() if other != key),
    "a text": lambda values, key: "a text",
    "a number": lambda values, key: 7,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_computed_and_replaced(
    open_engine: OpenEngine, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    store = Store()
    expected = fill(open_engine, store)
    whole = dict(store.values)
    for key in list(whole)[5:9]:
        store.values[key] = DAMAGES[damage](whole, key)
    engine = open_engine(store)
    (output,) = run(engine, PROMPT)
    assert tokens([output]) == expected
    assert output.num_cached_tokens == 5 * 4, "what comes before the damage is good"
    assert stats(engine).num_errors == 1
    assert len(warnings(caplog)) == 1
    assert "returned an entry that is not used" in warnings(caplog)[0]
    flush(engine)
    engine = open_engine(store)
    (output,) = run(engine, PROMPT)
    assert (output.num_cached_tokens, stats(engine).num_errors) == (48, 0), "all of it was written anew"


def test_a_store_that_fails_costs_one_warning(open_engine: OpenEngine, caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    expected = fill(open_engine, store)
    store.calls.clear()
    store.error = OSError(28, "No space left on device")
    engine = open_engine(store)
    for index in range(3):
        (output,) = run(engine, [index, *PROMPT[1:]])
        assert output.num_cached_tokens == 0
    assert tokens(run(engine, PROMPT)) == expected
    offload = engine.kv_offload
    assert offload is not None
    engine.close()
    assert len(warnings(caplog)) == 1
    assert "No space left on device" in warnings(caplog)[0]
    assert sorted(verb for verb, _ in store.calls) == ["get", "put"], "it is left alone for a while"
    assert offload.stats.num_errors == 2
    assert store.is_closed


def test_a_store_that_returns_other_values_is_a_failing_store(
    open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    expected = fill(open_engine, store)
    store.get = lambda keys: []  # type: ignore[method-assign]
    assert tokens(run(open_engine(store), PROMPT)) == expected
    assert "it returned 0" in warnings(caplog)[0]


def test_a_store_that_hangs_is_not_waited_for(
    open_engine: OpenEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("aethermind.engine.engine.KVOffload", partial(KVOffload, clock=lambda: now[0]))
    store = Store()
    expected = fill(open_engine, store)
    store.calls.clear()
    store.gate.clear()
    engine = open_engine(store)
    engine.add_request("other", [5], replace(PARAMS, max_tokens=40))
    engine.add_request("held", PROMPT, PARAMS)
    for _ in range(10):
        assert [output.request_id for output in engine.step()] == ["other"], "others go on meanwhile"
        assert EngineStats.of(engine).num_waiting == 1
    while not store.calls:
        pass
    now[0] = 2.5
    outputs = engine.step()
    assert len(outputs) == 2
    while engine.has_unfinished:
        outputs += engine.step()
    answers = {output.request_id: output.outputs[0].token_ids for output in outputs if output.finished}
    assert [answers["held"]] == expected
    assert len(warnings(caplog)) == 1
    assert "does not answer" in warnings(caplog)[0]
    engine.add_request("later", [3, *PROMPT], PARAMS)
    assert len(engine.waiting) == 1, "no request waits for the hanging call"
    engine.abort("later")
    store.gate.set()


def test_requests_can_leave_while_they_wait(open_engine: OpenEngine) -> None:
    """Who follows the one that left gets all the same what was fetched for it."""
    store = Store()
    expected = fill(open_engine, store)
    store.gate.clear()
    engine = open_engine(store)
    for name in ("leaves", "remains"):
        engine.add_request(name, PROMPT if name == "remains" else [*PROMPT[:40], *range(10)], PARAMS)
    assert engine.abort("leaves") is not None
    store.gate.set()
    while engine.has_unfinished:
        outputs = engine.step()
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert outputs[0].num_cached_tokens == 48
    store.gate.clear()
    engine.add_request("alone", [9] * 40, PARAMS)
    engine.abort("alone")
    assert not engine.has_unfinished
    store.gate.set()


def test_a_hanging_writer_delays_no_request(open_engine: OpenEngine) -> None:
    store = Store()
    engine = open_engine(store, num_kv_blocks=24)
    run(engine, PROMPT)
    flush(engine)
    store.put = lambda entries: store.gate.wait(60)  # type: ignore[assignment,method-assign,return-value]
    store.gate.clear()
    store.get = lambda keys: [None for _ in keys]  # type: ignore[method-assign]
    prompts = [[(start * 97 + i * 13) % 900 for i in range(60)] for start in range(4)]
    expected = tokens(run(open_engine(Store()), *prompts))
    assert tokens(run(engine, *prompts)) == expected
    assert stats(engine).num_dropped > 0, "blocks were needed before they could be written"
    store.gate.set()


def test_without_free_blocks_prompts_are_computed(open_engine: OpenEngine) -> None:
    """Fetched blocks take the place of idle ones only; what runs keeps its own."""
    store, prompts = Store(), [[(start * 31 + i * 7) % 900 for i in range(44)] for start in range(6)]
    expected = tokens(run(open_engine(store), *prompts))
    for num_kv_blocks in (14, 20, 32):
        engine = open_engine(store, num_kv_blocks=num_kv_blocks)
        for _ in range(2):
            assert tokens(run(engine, *prompts)) == expected
        assert stats(engine).num_errors == 0


def test_an_engine_that_is_garbage_collected_closes_its_store(runtime: Runtime) -> None:
    store = Store()
    parts = EngineParts.of(runtime, "demo", kv_store="host:1MiB", device="numpy", dtype="float32", max_model_len=96)
    engine = Engine(replace(parts, open_kv_store=lambda: store), parts.compiled.source.tokenizer())
    run(engine, PROMPT)
    del engine
    gc.collect()
    assert store.is_closed
    assert len(store.values) == 3


def test_it_needs_prefix_caching_and_an_address(runtime: Runtime) -> None:
    with pytest.raises(InvalidArgumentError, match="needs enable_prefix_caching"):
        compile_model(runtime, "demo", kv_store="host", enable_prefix_caching=False)
    with pytest.raises(InvalidArgumentError, match="is no address of a KV store"):
        compile_model(runtime, "demo", kv_store="/a/path")
    with pytest.raises(InvalidArgumentError, match="should be the address of a store, such as disk:/path, got 7"):
        compile_model(runtime, "demo", kv_store=7)

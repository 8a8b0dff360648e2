"""Estimates of memory: planned from headers alone, monotone, and the sizes that are suggested are the largest."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.models import DEMO, copy_demo
from tests.scale import scaled

from aethermind import LLM, Runtime
from aethermind.engine.config import EngineConfig
from aethermind.engine.loading import memory_estimate
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.memory_estimate import MemoryPlanner
from aethermind.errors import InvalidArgumentError, OutOfMemoryError
from aethermind.testing.families import cases_of

MIB = 1 << 20


@pytest.fixture(scope="module")
def planners(tmp_path_factory: pytest.TempPathFactory) -> list[MemoryPlanner]:
    """Of a small model of every architecture that generates text, with options that differ."""
    runtime, found, root = Runtime.boot(), [], tmp_path_factory.mktemp("models")
    for number, name in enumerate(runtime.architectures.names()):
        case = cases_of(runtime, name)[0]
        config = {"architectures": [name], **case.config}
        directory = root / name
        directory.mkdir()
        config = config if case.rewrite_config is None else case.rewrite_config(config)
        (directory / "config.json").write_text(json.dumps(config))
        options = {"device": "cpu", "dtype": ("float32", "bfloat16")[number % 2], "block_size": (16, 4)[number % 2]}
        compiled = compile_model(runtime, directory, load_format="dummy", fallback="allow", **options)
        if compiled.generates:
            found.append(MemoryPlanner(compiled, 50 * MIB))
    return found


def sizes(planner: MemoryPlanner, rng: random.Random) -> dict[str, int]:
    longest = planner._compiled.model.config.max_position_embeddings
    return {
        "max_model_len": rng.randint(1, longest),
        "max_num_seqs": rng.randint(1, 64),
        "max_num_batched_tokens": rng.choice([64, 128, 512, 2048]),
    }


def settings(planners: list[MemoryPlanner], count: int) -> Iterator[tuple[MemoryPlanner, random.Random]]:
    for number in range(count):
        yield planners[number % len(planners)], random.Random(number)


def total(planner: MemoryPlanner, **changes: Any) -> int:
    return planner.estimate(replace(planner._compiled.config, **changes)).device_bytes


def test_more_context_or_a_larger_batch_never_takes_less(planners: list[MemoryPlanner]) -> None:
    for planner, rng in settings(planners, scaled(40_000)):
        given = sizes(planner, rng)
        name = rng.choice(["max_model_len", "max_num_seqs"])
        fewer = {**given, name: rng.randint(1, given[name])}
        assert 0 < total(planner, **fewer) <= total(planner, **given)


def test_the_suggested_context_and_batch_fit_and_larger_ones_do_not(planners: list[MemoryPlanner]) -> None:
    for planner, rng in settings(planners, 4 * len(planners)):
        compiled = planner._compiled
        config, block_size = compiled.config, compiled.cache_spec.block_size
        longest = compiled.model.config.max_position_embeddings
        low, high = total(planner, max_model_len=1), total(planner, max_model_len=longest)
        limit = rng.randint(low, high)
        context = planner.largest_context(limit)
        assert context == 0 or total(planner, max_model_len=context) <= limit
        if context + block_size <= longest:
            assert total(planner, max_model_len=context + block_size) > limit
        of_context = {"max_model_len": compiled.max_model_len}
        limit = rng.randint(total(planner, **of_context, max_num_seqs=1), total(planner, **of_context) + 1)
        batch = planner.largest_batch(limit)
        assert total(planner, **of_context, max_num_seqs=batch) <= limit
        if batch < config.max_num_seqs:
            assert total(planner, **of_context, max_num_seqs=batch + 1) > limit


def test_a_larger_limit_never_allows_fewer_blocks(planners: list[MemoryPlanner]) -> None:
    for planner, rng in settings(planners, 4 * len(planners)):
        own = planner.estimate().device_bytes
        limits = sorted(rng.randint(own // 2, own + 1) for _ in range(4))
        counts = [planner.num_fitting_blocks(limit) for limit in limits]
        assert counts == sorted(counts)
        assert planner.num_fitting_blocks(own) == planner._compiled.num_kv_blocks
        assert planner.num_fitting_blocks(own - 1) < planner._compiled.num_kv_blocks


@pytest.fixture(autouse=True)
def _process_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests grows from one estimate to the next."""
    monkeypatch.setattr(memory_estimate, "resident_bytes", lambda: 64 * MIB)


def needs(**options: Any) -> int:
    compiled = compile_model(Runtime.boot(), DEMO, EngineConfig(device="cpu", **options))
    return MemoryPlanner(compiled).estimate().device_bytes


def test_the_default_context_is_what_fits_into_memory(caplog: pytest.LogCaptureFixture) -> None:
    least = needs(max_model_len=16, num_kv_blocks=1)
    limit = least + MIB
    with LLM(DEMO, device="cpu", memory=limit) as llm:
        assert 16 < llm.info.max_model_len < 2048
        assert f"holds the KV cache of {llm.info.max_model_len} tokens" in caplog.text
        assert limit - MIB < llm.engine.parts.memory.device_bytes <= limit


def test_what_planning_itself_takes_is_part_of_the_plan(runtime: Runtime) -> None:
    """In a new process planning imports the tokenizers' library and more, and the model is compiled again."""
    code = """if True:
        from aethermind import LLM
        from aethermind.hal.host_memory import resident_bytes

        limit = resident_bytes() + (68 << 20)
        with LLM(device="cpu", memory=limit, num_threads=1) as llm:
            print(llm.engine.compiled.num_kv_blocks, limit - llm.engine.parts.memory.device_bytes)
    """
    whole = compile_model(runtime, DEMO, device="cpu").num_kv_blocks
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    num_blocks, left = map(int, answer.stdout.split())
    assert 0 < num_blocks < whole
    assert 0 <= left < MIB


def test_a_given_number_of_blocks_that_does_not_fit_is_suggested_lower() -> None:
    limit = needs(num_kv_blocks=1000)
    with pytest.raises(OutOfMemoryError, match=r"it fits with --num-kv-blocks 1000, or with --quantization int8"):
        LLM(DEMO, device="cpu", num_kv_blocks=2000, memory=limit)


def test_a_model_that_does_not_fit_is_refused_before_a_weight_is_read(tmp_path: Path) -> None:
    model = copy_demo(tmp_path / "model", {"max_position_embeddings": 65536})
    (model / "model.safetensors").write_bytes(b"not even a header")
    limit = needs(max_model_len=2048) + 2 * MIB
    with pytest.raises(OutOfMemoryError) as caught:
        LLM(model, device="cpu", max_model_len=65536, memory=str(limit))
    words = str(caught.value)
    assert words.startswith("model takes ")
    assert "may be used by --memory: it fits with --max-model-len " in words
    assert words.count(". ") == 0
    context = int(words.partition("--max-model-len ")[2].rstrip(".").split(",")[0])
    assert 2048 <= context < 65536
    copy_demo(tmp_path / "whole", {"max_position_embeddings": 65536})
    with LLM(tmp_path / "whole", device="cpu", max_model_len=context, memory=limit) as llm:
        assert llm.info.max_model_len == context


def test_weights_that_do_not_fit_are_suggested_in_a_smaller_format(tmp_path: Path) -> None:
    model = copy_demo(
        tmp_path / "model", {"num_hidden_layers": 12, "intermediate_size": 16384}, {"model.safetensors": None}
    )
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "load_format": "dummy", "max_model_len": 64}
    whole = MemoryPlanner(compile_model(Runtime.boot(), model, EngineConfig(**options))).estimate().device_bytes
    with pytest.raises(OutOfMemoryError, match=r"it fits with --quantization int8, or with --quantization int4\."):
        LLM(model, **options, memory=whole // 2)
    with pytest.raises(OutOfMemoryError, match="choose a smaller model"):
        LLM(model, **options, memory=100)


@pytest.mark.parametrize("size", ["much", "", "0", "-1", True, 0, 2.5])
def test_memory_is_a_size(size: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="memory should be a size such as 8GiB"):
        LLM(DEMO, device="numpy", memory=size)


def test_a_second_stream_and_a_swap_device_are_counted(runtime: Runtime) -> None:
    """The plain step is in memory twice for two streams; a swap space on a peer takes no host memory."""

    def estimated(**options: Any) -> tuple[int, int]:
        sizes = {"max_model_len": 128, "num_kv_blocks": 64, "load_format": "dummy", "swap_space": 0.25}
        compiled = compile_model(runtime, "demo", device="sim", dtype="float32", **sizes, **options)
        found = MemoryPlanner(compiled, 50 * MIB).estimate()
        return found.device["workspace"], found.host.get("swap", 0)

    workspace, swap = estimated()
    assert estimated(swap_device="sim:1") == (workspace, 0)
    on_two_streams, _ = estimated(prefill_stream=True)
    assert workspace < on_two_streams < 2 * workspace
    assert 0.2 * (1 << 30) < swap <= 0.25 * (1 << 30)

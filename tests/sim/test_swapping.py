"""An engine that swaps while its steps run: answers are those of an engine with enough memory, whatever the stream
order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.sim.small_model import write_small_model

from aethermind import Runtime, SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.parts import EngineParts
from aethermind.errors import InvalidArgumentError
from aethermind_sim.backend import SimBackend

PROMPTS = [[(7 * index + 11 * token) % 900 + 5 for token in range(4 + index)] for index in range(5)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
SEEDS = range(3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model."""
    demo = Path(Runtime.boot().models.locate("demo"))
    return str(write_small_model(demo, tmp_path_factory.mktemp("swapping") / "model"))


def answers(model: str, device: str, **options: Any) -> tuple[list[list[int]], int]:
    """All answers, and the number of blocks swapped out."""
    options = {"block_size": 4, "max_model_len": 32, "enable_prefix_caching": False, "dtype": "float32", **options}
    parts = EngineParts.of(Runtime.boot(), model, device=device, **options)
    engine = Engine(parts, parts.compiled.source.tokenizer())
    engine.costs.seconds_per_byte, engine.costs.seconds_per_token = 0.0, 1e6
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, PARAMS)
    finished = {}
    while engine.has_unfinished:
        finished.update({one.request_id: one.outputs[0].token_ids for one in engine.step() if one.finished})
    num_moved = 0 if engine.swap_store is None else engine.swap_store.num_moved_out
    engine.close()
    return [finished[str(index)] for index in range(len(PROMPTS))], num_moved


def pressed_answers(model: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    monkeypatch.setenv("AETHERMIND_SIM_SEED", str(seed))
    found, num_moved = answers(model, "sim", num_kv_blocks=7, swap_space=0.01)
    assert num_moved > 0
    return found


def test_answers_are_those_without_pressure(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = answers(model, "numpy")
    for seed in SEEDS:
        assert pressed_answers(model, seed, monkeypatch) == expected


def test_blocks_are_swapped_to_a_peer(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the memory of the other device, and none crosses the host."""
    allocated: list[tuple[int, int]] = []
    alloc_swap = KVMemory._alloc_swap_rows

    def noted(self: KVMemory, num_rows: int, tensors: Any) -> Any:
        allocator = self._opened.backend.allocator
        before = [allocator.device_bytes(index) for index in (0, 1)]  # type: ignore[attr-defined]
        found = alloc_swap(self, num_rows, tensors)
        after = [allocator.device_bytes(index) for index in (0, 1)]  # type: ignore[attr-defined]
        allocated.append((after[0] - before[0], after[1] - before[1]))
        assert {tensor.buffer.device.index for tensor in found.values()} == {1}
        assert self._opened.backend.devices.current() == 0
        return found

    monkeypatch.setattr(KVMemory, "_alloc_swap_rows", noted)
    expected, _ = answers(model, "numpy")
    for seed in SEEDS:
        monkeypatch.setenv("AETHERMIND_SIM_SEED", str(seed))
        found, num_moved = answers(model, "sim", num_kv_blocks=7, swap_space=0.01, swap_device="sim:1")
        assert (found, num_moved > 0) == (expected, True)
    assert [on_first for on_first, _ in allocated] == [0] * len(SEEDS)
    assert all(on_peer > 0 for _, on_peer in allocated)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"swap_device": "sim:0"}, "that is the device that computes"),
        ({"swap_device": "sim:2"}, r"sim has 2 device\(s\)"),
        ({"swap_device": "cpu"}, "copies to devices of sim only"),
        ({"swap_device": "sim:1", "device": "numpy"}, "computes in host memory"),
        ({"swap_device": "sim:1", "swap_space": 0.0}, "how many GiB of its memory to use"),
        ({"swap_device": "sim:1", "tensor_parallel_size": 2}, "for one rank"),
    ],
    ids=str,
)
def test_a_device_that_cannot_be_swapped_to_is_refused(model: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        compile_model(Runtime.boot(), model, **{"device": "sim", "swap_space": 0.01, **options})


def test_a_device_that_is_no_peer_is_refused(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimBackend, "can_access_peer", lambda self, index, other: False)
    with pytest.raises(InvalidArgumentError, match="no peer access to it, so copies would go through host memory"):
        compile_model(Runtime.boot(), model, device="sim", swap_space=0.01, swap_device="sim:1")


def test_steps_that_do_not_wait_for_block_copies_are_detected(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = answers(model, "numpy")
    monkeypatch.setattr(KVMemory, "wait_for_swaps", lambda self, blocks=None: None)
    assert any(pressed_answers(model, seed, monkeypatch) != expected for seed in SEEDS)

"""The device passes the conformance kit, computes with its own kernels, and reuses its memory."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from aethermind import LLM, Runtime, SamplingParams
from aethermind.errors import OutOfMemoryError
from aethermind.hal import Backend, DType, Tensor


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime.boot()


@pytest.fixture
def backend(runtime: Runtime) -> Backend:
    return runtime.open_device("arena").backend


def aethermind(*arguments: str) -> dict[str, object]:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "aethermind", *arguments, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_it_conforms() -> None:
    """The whole kit except the cases of kernels that are the core's references."""
    report = aethermind("conform", "arena", "-k", "test_hal or test_models or arena")
    assert (report["failed"], report["problems"]) == (0, [])
    assert {case["name"].partition(".")[0] for case in report["cases"]} == {"hal", "operators", "models"}
    assert report["executed"] > 350


def test_answers_are_those_of_numpy(runtime: Runtime) -> None:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=16)
    prompts = ["Once upon a time", "The little fox"]
    texts = []
    for device in ("arena", "numpy"):
        with LLM("demo", device=device, dtype="float32", fallback="error", runtime=runtime) as llm:
            texts.append([output.outputs[0].text for output in llm.generate(prompts, params)])
    assert texts[0] == texts[1]


def test_fused_operators_are_decomposed() -> None:
    sections = aethermind("explain", "--device", "arena")["sections"]
    steps = [step for section in sections for step in section["steps"]]
    own = {step["path"] for step in steps if step["kernel"].startswith("arena ")}
    assert own >= {"qkv_rope_cache_write/kv_cache_write", "add_rms_norm/rms_norm", "mlp_swiglu/gate_up_silu/silu"}
    assert {step["path"] for step in steps} - own <= {"rope_table", "sample_tokens"}


def test_freed_memory_is_reused(backend: Backend) -> None:
    first = backend.allocator.alloc(1000)
    address = first.address
    assert backend.allocator.alloc(1000).address != address
    first.free()
    assert backend.allocator.alloc(990).address == address


def test_a_full_arena_raises_and_remains_usable(backend: Backend) -> None:
    with pytest.raises(OutOfMemoryError, match=r"on arena:0: \d+ of its \d+ bytes are in use"):
        backend.allocator.alloc(1 << 33)
    assert backend.allocator.alloc(64).nbytes == 64


def test_the_host_sees_copied_data_only(backend: Backend) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    there = Tensor.of(backend.allocator.alloc(array.nbytes), DType.FLOAT32, array.shape)
    assert not there.buffer.is_host_accessible
    device = there.buffer.device
    backend.transfer.copy(there, Tensor.of_numpy(array, device))
    back = np.zeros_like(array)
    backend.transfer.copy(Tensor.of_numpy(back, device), there)
    np.testing.assert_array_equal(back, array)

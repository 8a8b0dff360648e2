"""What a step of Qwen2-7B costs the host on CUDA, over a driver that does nothing, for new and for known sizes.

make bench
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.cuda.emulator.builder import CSRC
from tests.cuda.fake_gpus import FakeGpus
from tests.cuda.host_driver import fake_cubins
from tests.cuda.test_step_binding import GPU, WORKSPACE, map_memory, plan_large_model, sizes_of

from aethermind.hal import Buffer, DeviceId
from aethermind_cuda.devices import Context
from aethermind_cuda.executable import CudaExecutable
from aethermind_cuda.graph_capture import CudaGraphCache
from aethermind_cuda.library import KernelLibrary

NUM_SIZES = 30


class IdleDriver(FakeGpus):
    """Launches nothing."""

    def module_load(self, image: bytes) -> int:
        return self._new(image)

    def get_function(self, module: int, name: str) -> int:
        return self._new((module, name))

    def set_dynamic_shared_limit(self, function: int, nbytes: int) -> None: ...

    def encode_tensor_map(self, *_: Any) -> bytes:
        return bytes(128)

    def launch_kernel(self, *_: Any) -> None: ...


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def bench_new_and_known_sizes(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Print the least and the median CPU time of enqueueing a prefill step, without cuBLASLt."""
    plan = plan_large_model(tmp_path, monkeypatch, None, dtype=dtype)
    driver: Any = IdleDriver(1, 1 << 40)
    library = KernelLibrary(driver, GPU, fake_cubins(tmp_path, [source.stem for source in CSRC.glob("*.cu")]))
    captured = CudaGraphCache(driver, Context(driver, 0))
    workspace = Buffer(DeviceId("cuda", 0), WORKSPACE, 1 << 30, is_host_accessible=False, release=lambda: None)
    executable = CudaExecutable(
        plan, map_memory(plan, has_adjacent=True), 0, GPU, library, captured, lambda _: workspace
    )

    def milliseconds(num_tokens: int) -> float:
        symbols = sizes_of(plan, T=num_tokens, S=4, R=4, B=8)
        started = time.process_time()
        executable._enqueue(symbols, 0, len(plan.steps), 1)
        return (time.process_time() - started) * 1e3

    milliseconds(100)
    for kind in ("new", "known"):
        times = sorted(milliseconds(500 + index) for index in range(NUM_SIZES))
        print(
            f"\n{dtype}, {len(plan.steps)} steps, {kind} sizes: {times[0]:.2f} ms, median {times[NUM_SIZES // 2]:.2f}"
        )

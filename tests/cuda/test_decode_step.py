"""A decode step on a GPU whose kernels do nothing: what crosses the bus, what is launched, what is allocated."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.architecture.sources import ROOT
from tests.cuda.host_driver import HostDriver, fake_cubins
from tests.range_log import RangeLog, ranges_of_an_answer

from aethermind import LLM, Runtime, SamplingParams
from aethermind.errors import DeviceError
from aethermind.hal import Probe
from aethermind.hal.memory import ALIGNMENT
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.streams import CudaEvent

CSRC = ROOT / "aethermind-cuda" / "csrc"
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5]]
NUM_TOKENS = 24


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDriver]:
    """Behind `--device cuda`."""
    driver = HostDriver()
    cubins = fake_cubins(tmp_path, [source.stem for source in CSRC.glob("*.cu")])
    monkeypatch.setattr("aethermind_cuda.probe.probe", lambda: Probe(1, "a GPU that computes nothing."))
    monkeypatch.setattr("aethermind_cuda.probe.open_backend", lambda: CudaBackend(driver, cubins))
    monkeypatch.setattr("aethermind_cuda.kernels._cublaslt.find_cublaslt", lambda: None)
    return driver


@pytest.fixture
def llm(driver: HostDriver) -> LLM:
    """The demo model on it, booted anew so that the device is ours."""
    assert driver.device_count()
    return LLM("demo", device="cuda", max_model_len=64, max_num_seqs=8, runtime=Runtime.boot())


def test_token_ids_come_down_and_index_arrays_go_up(llm: LLM, driver: HostDriver) -> None:
    engine = llm.engine
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.5, seed=1, ignore_eos=True)
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, params)
    engine.step()
    transfer = engine.runner.compiled.open_device.backend.transfer
    padded, width = 4, 4  # three sequences, and at most 64 tokens in blocks of 16
    up_per_row = sum((4, 8, 8, 4, 4, 4)) + sum((4, 4, 4, 4, 4))
    num_arrays = len(engine.runner.executor.host_inputs)
    for _ in range(NUM_TOKENS - 2):
        before, allocated = transfer.stats(), driver.calls["mem_alloc"]
        engine.step()
        after = transfer.stats()
        assert after.device_to_host_bytes - before.device_to_host_bytes == 4 * len(PROMPTS)
        up = after.host_to_device_bytes - before.host_to_device_bytes
        assert up <= padded * (up_per_row + 4 * width) + 4 + num_arrays * ALIGNMENT
        assert after.host_to_device_copies - before.host_to_device_copies == 1
        assert after.device_to_host_copies - before.device_to_host_copies == 1
        assert driver.calls["mem_alloc"] == allocated
    before = transfer.stats()
    engine.step()
    assert transfer.stats() == before, "the last step was on its way"
    assert not engine.has_unfinished


def test_graphs_are_launched_before_the_previous_tokens_are_read(
    llm: LLM, driver: HostDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step costs the host one graph, three copies, and one wait, for the tokens of the graph before."""
    log: list[str] = []
    engine, readback = llm.engine, llm.engine.runner._main_stream.readback
    assert readback is not None
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True))
    for _ in range(NUM_TOKENS // 2):
        engine.step()
    token_events = [event.handle for _, event in readback._buffers if isinstance(event, CudaEvent)]
    launch, wait = driver.graph_launch, driver.event_synchronize

    def graph_launch(graph: int, stream: int) -> None:
        log.append("launch")
        launch(graph, stream)

    def event_synchronize(event: int) -> None:
        if event in token_events:
            log.append("wait")
        wait(event)

    monkeypatch.setattr(driver, "graph_launch", graph_launch)
    monkeypatch.setattr(driver, "event_synchronize", event_synchronize)
    before = Counter(driver.calls)
    for _ in range(4):
        engine.step()
    calls = driver.calls - before
    assert log == ["launch", "wait"] * 4
    assert (calls["copy"], calls["launch_kernel"], calls["stream_synchronize"]) == (3 * 4, 0, 0)


@pytest.mark.parametrize("is_closed", [False, True])
def test_objects_that_outlive_the_engine_are_released_before_the_context(driver: HostDriver, is_closed: bool) -> None:
    """Memory, streams, events and graphs of an engine that is closed, or dropped with a step on its way."""
    llm = LLM("demo", device="cuda", max_model_len=64, max_num_seqs=8, swap_space=0.01, runtime=Runtime.boot())
    for index, prompt in enumerate(PROMPTS):
        params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
        llm.engine.add_request(str(index), prompt, params)
    for _ in range(NUM_TOKENS // 2):
        llm.engine.step()
    if is_closed:
        llm.close()
    assert (driver.retained.total() == 0) == is_closed, "what is closed is given back at once"
    del llm
    gc.collect()
    assert driver.memory == {}
    assert driver.retained.total() == 0
    for what in ("stream", "event"):
        assert driver.calls[f"{what}_create"] == driver.calls[f"{what}_destroy"] > 0
    assert driver.calls["begin_capture"] == driver.calls["graph_exec_destroy"] > 0


def test_decodes_are_launched_as_graphs_which_hold_the_whole_step(llm: LLM, driver: HostDriver) -> None:
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    llm.generate(prompts, SamplingParams(max_tokens=NUM_TOKENS, temperature=0.5, seed=1, ignore_eos=True))
    captured = driver.calls["begin_capture"]
    assert 1 <= captured <= 3  # block tables of one, two and four
    assert driver.calls["graph_launch"] >= NUM_TOKENS - 1 - 2 * captured
    (plan,) = {executor.plan.name: executor.plan for executor in llm.engine.runner.executors}.values()
    graphs = [thing for thing in driver.handles.values() if isinstance(thing, list) and thing and callable(thing[0])]
    assert all(len(graph) >= len(plan.steps) for graph in graphs)


def test_steps_and_operators_are_ranges_of_nvtx(driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch is inside the range of its operator; a decode step is the launch of one graph."""
    log, launched = RangeLog(), list[tuple[str, ...]]()
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(annotate=log.range))
    launch, replay = driver.launch_kernel, driver.graph_launch

    def note(call: Any) -> Any:
        def noted(*arguments: Any) -> None:
            launched.append(log.open)
            call(*arguments)

        return noted

    monkeypatch.setattr(driver, "launch_kernel", note(launch))
    monkeypatch.setattr(driver, "graph_launch", note(replay))
    options = {"max_model_len": 64, "max_num_seqs": 8, "profiler_ranges": True}
    with LLM("demo", device="cuda", runtime=Runtime.boot(), **options) as llm:
        found = ranges_of_an_answer(llm, log)
        plan = llm.engine.compiled.step.plan
    operators = [f"{step.kernel.operator} {step.source}" for step in plan.steps]
    assert found == {"prefill": [operators], "decode": [[], []]}
    in_prefill = [names[1] for names in launched if names[0] == "prefill"]
    assert list(dict.fromkeys(in_prefill)) == operators
    assert launched.count(("decode",)) >= 2


def test_without_nvtx_the_error_says_what_to_install(driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver.device_count()
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(DeviceError, match="pip install nvtx"):
        LLM("demo", device="cuda", max_model_len=64, runtime=Runtime.boot(), profiler_ranges=True)

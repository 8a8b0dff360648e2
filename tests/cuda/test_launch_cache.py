"""Launches of a step are bound anew only for sizes that the step depends on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cuda.emulator.builder import CSRC
from tests.cuda.host_driver import HostDriver, fake_cubins

from aethermind import LLM, Runtime, SamplingParams
from aethermind.hal import Probe
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.launch import Enqueue
from aethermind_cuda.launch_cache import LaunchCache
from aethermind_cuda.step_binding import StepBinder

PROMPT = {"prompt_token_ids": list(range(5, 25))}


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LLM:
    """The demo model on a GPU that computes nothing."""
    driver = HostDriver(memory=1 << 40)
    cubins = fake_cubins(tmp_path, [source.stem for source in CSRC.glob("*.cu")])
    monkeypatch.setattr("aethermind_cuda.probe.probe", lambda: Probe(1, "a GPU that computes nothing."))
    monkeypatch.setattr("aethermind_cuda.probe.open_backend", lambda: CudaBackend(driver, cubins))
    monkeypatch.setattr("aethermind_cuda.kernels._cublaslt.find_cublaslt", lambda: None)
    return LLM(
        "demo", device="cuda", max_model_len=256, max_num_seqs=8, enable_prefix_caching=False, runtime=Runtime.boot()
    )


def test_changed_sampler_lists_do_not_rebind_the_models_steps(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[str] = []
    bind = StepBinder.bind

    def noted(self: StepBinder, position: int, symbols: tuple[int, ...]) -> list[Enqueue]:
        bound.append(self._plan.steps[position].source)
        return bind(self, position, symbols)

    monkeypatch.setattr(StepBinder, "bind", noted)
    counts = []
    for num_biased in (3, 5, 3):
        bias = dict.fromkeys(range(num_biased), 1.0)
        llm.generate(PROMPT, SamplingParams(max_tokens=6, temperature=0.0, logit_bias=bias, ignore_eos=True))
        counts.append(len(bound))
        bound.clear()
    assert counts[0] > len(llm.engine.runner.executor.plan.steps)
    assert 0 < counts[1] <= counts[0] / 5, "of a prompt's step and those of tokens, what reads the lists"
    assert counts[2] == 0


def test_launches_of_a_step_are_cached_for_the_last_sizes(llm: LLM) -> None:
    plan = llm.engine.runner.executor.plan
    cache = LaunchCache(plan)
    made: list[int] = []

    def bind(*_: object) -> list[Enqueue]:
        made.append(1)
        return [made.append]

    sizes = [tuple(number for _ in plan.symbols) for number in range(1, 34)]
    first = [cache.get(0, one, bind) for one in sizes]
    assert len(made) == len(sizes)
    assert cache.get(0, sizes[-1], bind) is first[-1]
    assert len(made) == len(sizes)
    cache.get(0, sizes[0], bind)
    assert len(made) == len(sizes) + 1, "the first of 33 was forgotten"

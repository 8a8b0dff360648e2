"""Requests that arrive while others decode, over the shapes of Qwen2-7B: prefill on one stream and on two.

python -m tests.cuda.check.stream_figures [--small]

A step that does not end is what this may find, so every run prints a line, and one without a step for some seconds
prints where the host is and which streams have work. The process that follows a hung one runs the first load with parts
of the mechanism left out, to tell which of them it takes.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any
from unittest import mock

from tests.cuda.check import qwen2_7b
from tests.cuda.check.records import CaseLog

from aethermind import LLM
from aethermind.cli.bench.prefill_stream import MixedLoad, compare_streams
from aethermind.engine.steps.model_runner import ModelRunner
from aethermind_cuda.cuda_bindings_driver import CudaDriver
from aethermind_cuda.graph_capture import CudaGraphCache

__all__ = ["Watch"]

_LOADS = ((32, 16, 1024, 32), (96, 64, 512, 32))
"""Requests, those open at a time, tokens of a prompt, and of an answer in the mean."""
_SMALL_LOADS = ((4, 2, 32, 4),)
_REPEAT = 2
_PATIENCE_S = 3.0
"""A step takes milliseconds; the state is printed when none came for so long."""


class Watch:
    """Counts the steps that a model's runner enqueues: every `patience_s` seconds it records their number, or prints
    the state when there was none.
    """

    def __init__(self, llm: LLM, log: CaseLog, patience_s: float) -> None:
        self.doing = "nothing"
        self._llm = llm
        self._log = log
        self._patience_s = patience_s
        self._launch, self._num_steps, self._last = llm.engine.runner.launch, 0, ""
        self._ended = Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs."""
        thread = Thread(target=self._watch, daemon=True)
        thread.start()
        self._llm.engine.runner.launch = self._counting  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self._llm.engine.runner.launch
            faulthandler.cancel_dump_traceback_later()
            self._ended.set()
            thread.join()

    def _counting(self, decision: Any, *previous: Any) -> Any:
        self._last = f"{decision.phase}, {decision.num_decodes} decodes, {decision.num_batched_tokens} tokens"
        self._num_steps += 1
        # Needs no interpreter lock, in case that a call of the driver holds it.
        faulthandler.dump_traceback_later(1.5 * self._patience_s, file=sys.__stderr__)
        return self._launch(decision, *previous)

    def _watch(self) -> None:
        before = -1
        while not self._ended.wait(self._patience_s):
            if self._num_steps == before:
                _say(f"no step for {self._patience_s:g} s in {self.doing}: {self._num_steps} steps, last {self._last}")
                self._say_streams()
            else:
                before = self._num_steps
                self._log.write(progress=f"{self.doing}: {before} steps, last {self._last}")

    def _say_streams(self) -> None:
        engine = self._llm.engine
        _say(f"{len(engine.running)} running, {len(engine.waiting)} waiting")
        for name, step_stream in (("main", engine.runner._main_stream), ("prefill", engine.runner._prefill_stream)):
            assert step_stream is not None
            _say(f"{name} stream: {'idle' if step_stream.stream.query() else 'busy'}")


@contextmanager
def _synchronised() -> Iterator[None]:
    launch = ModelRunner.launch

    def launch_and_wait(runner: ModelRunner, *arguments: Any) -> Any:
        step = launch(runner, *arguments)
        runner._main_stream.stream.synchronize()
        return step

    with mock.patch.object(ModelRunner, "launch", launch_and_wait):
        yield


def _without_dependent_launches() -> Any:
    launch = CudaDriver.launch_kernel
    return mock.patch.object(CudaDriver, "launch_kernel", lambda driver, *arguments: launch(driver, *arguments[:6]))


def _without_graphs() -> Any:
    return mock.patch.object(CudaGraphCache, "run", lambda _, __, stream, enqueue: enqueue(stream))


_VARIANTS: Mapping[str, Callable[[], Any]] = {
    "waiting for each step": _synchronised,
    "without dependent launches": _without_dependent_launches,
    "without graphs": _without_graphs,
}


def main() -> int:
    """Load once and run every load; after a failure, once for each variant."""
    is_small = "--small" in sys.argv
    log = CaseLog.of_environment("prefill stream")
    loads = _SMALL_LOADS if is_small else _LOADS
    config = qwen2_7b.SMALL_CONFIG if is_small else qwen2_7b.CONFIG
    vocab_size = int(config["vocab_size"])
    begun = log.begun()
    with TemporaryDirectory() as folder:
        model = qwen2_7b.write_model(Path(folder) / "model", config)
        if not log.failures():
            with _opened(model, log, is_small=is_small) as (llm, watch):
                for load in loads:
                    if _name(load) not in begun:
                        _compare(llm, watch, load, vocab_size, log)
        for name, variant in _VARIANTS.items() if log.failures() else ():
            if name not in begun:
                with variant(), _opened(model, log, is_small=is_small) as (llm, watch), log.case(name) as facts:
                    for streams, overlaps in (("one stream", False), ("two streams", True)):
                        watch.doing = f"{name}, {streams}"
                        facts[streams] = MixedLoad(*loads[0], vocab_size).run(llm.engine, overlaps=overlaps).seconds
    return 1 if log.failures() else 0


@contextmanager
def _opened(model: Path, log: CaseLog, *, is_small: bool) -> Iterator[tuple[LLM, Watch]]:
    """The model, watched."""
    began = time.perf_counter()
    log.write(progress="loading")
    with LLM(
        model,
        device="cuda",
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=128 if is_small else 2048,
        max_num_batched_tokens=64 if is_small else 2048,
        max_num_seqs=64,
        enable_prefix_caching=False,
        prefill_stream=True,
    ) as llm:
        _say(f"loaded in {time.perf_counter() - began:.1f} s")
        watch = Watch(llm, log, _PATIENCE_S)
        with watch.watching():
            yield llm, watch


def _compare(llm: LLM, watch: Watch, load: tuple[int, int, int, int], vocab_size: int, log: CaseLog) -> None:
    def said(round_index: int, overlaps: bool, seconds: float) -> None:
        log.write(progress=f"{_name(load)}: round {round_index}, {'two streams' if overlaps else 'one stream'}")
        _say(f"{_name(load)}: round {round_index}, {'two streams' if overlaps else 'one stream'}: {seconds:.2f} s")
        watch.doing = f"{_name(load)}, after round {round_index} with {'two streams' if overlaps else 'one stream'}"

    with log.case(_name(load)) as facts:
        watch.doing = _name(load)
        report = compare_streams(llm.engine, MixedLoad(*load, vocab_size), _REPEAT, said)
        facts["same tokens"] = report["same_tokens"]
        for streams in ("one_stream", "two_streams"):
            facts |= {f"{streams} {name}": round(value, 5) for name, value in report[streams].items()}


def _name(load: tuple[int, int, int, int]) -> str:
    requests, batch, prompt_tokens, output_tokens = load
    return f"{requests} x ({prompt_tokens} + {output_tokens}), {batch} at once"


def _say(line: str) -> None:
    print(f"prefill stream: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

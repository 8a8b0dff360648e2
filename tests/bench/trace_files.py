"""Count the Python files, functions and calls that a request crosses: how many places a reader has to visit.

    python -m tests.bench.trace_files [--json] [--list] [--device cpu] [--max-tokens 8]

Three paths of the demo model are traced by `sys.setprofile`: one offline `LLM.generate`, one steady decode step, and
one streamed chat request over HTTP, in the server process and the engine process together. Each runs before it is
traced, so that lazy imports and caches of first use do not count. The HTTP request is traced several times, and what is
not in all of them does not count: what the server does once a second. Only files of `aethermind` packages count; every
entry of a function is a call, and so is every resumption of a generator or coroutine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["CallCounter", "Trace", "main", "trace_decode_step", "trace_generate", "trace_http", "trace_on_signals"]

START, STOP = signal.SIGUSR1, signal.SIGUSR2
"""What `trace_on_signals` listens for."""

_PACKAGE_FILE = re.compile(r"(?:site-packages|src)/(aethermind\w*/.+\.py)$")
_PATIENCE_S = 60.0
_NUM_TRACES = 4
_PROMPT = "Once upon a time"


class CallCounter:
    """Counts calls by code object between `start` and `stop`: in this thread, and in all that begin after `install`."""

    def __init__(self) -> None:
        self._counts: Counter[CodeType] = Counter()
        self._is_on = False

    def install(self) -> None:
        """Have Python report calls: before threads begin, since no thread can set the profile function of another."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def start(self) -> None:
        """Count from here on."""
        self._counts.clear()
        self._is_on = True

    def stop(self) -> dict[str, int]:
        """Stop; returns calls by `file:line function`, of files in packages only."""
        self._is_on = False
        named: Counter[str] = Counter()
        for code, count in self._counts.copy().items():
            found = _PACKAGE_FILE.search(code.co_filename)
            if found is not None:
                named[f"{found[1]}:{code.co_firstlineno} {code.co_qualname}"] += count
        return dict(named)

    @contextmanager
    def counting(self) -> Iterator[dict[str, int]]:
        """Fill a dict with the calls of the block, once it ends."""
        calls: dict[str, int] = {}
        self.start()
        try:
            yield calls
        finally:
            calls.update(self.stop())

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if self._is_on and event == "call":
            self._counts[frame.f_code] += 1


@dataclass(frozen=True, slots=True)
class Trace:
    """Calls of one path, by `file:line function`."""

    calls: dict[str, int]

    @property
    def files(self) -> list[str]:
        """The files that the path crosses."""
        return sorted({name.partition(":")[0] for name in self.calls})

    def __add__(self, other: Trace) -> Trace:
        return Trace(dict(Counter(self.calls) + Counter(other.calls)))

    def common(self, other: Trace) -> Trace:
        """The calls that both have."""
        return Trace(dict(Counter(self.calls) & Counter(other.calls)))

    def as_json(self) -> dict[str, Any]:
        """Totals, and calls by file and by function."""
        by_file: Counter[str] = Counter()
        for name, count in self.calls.items():
            by_file[name.partition(":")[0]] += count
        return {
            "num_files": len(by_file),
            "num_functions": len(self.calls),
            "num_calls": sum(by_file.values()),
            "files": dict(sorted(by_file.items())),
            "functions": dict(sorted(self.calls.items())),
        }


def trace_generate(counter: CallCounter, device: str, max_tokens: int) -> Trace:
    """One prompt through `LLM.generate`."""
    from aethermind import LLM, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    with LLM("demo", device=device) as llm:
        llm.generate(_PROMPT, params)
        with counter.counting() as calls:
            llm.generate(_PROMPT, params)
    return Trace(calls)


def trace_decode_step(counter: CallCounter, device: str, max_tokens: int) -> Trace:
    """One step of the engine in which a running request gets its next token."""
    from aethermind import LLM, SamplingParams

    num_warmup = max_tokens + 4
    with LLM("demo", device=device) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=num_warmup + 8, ignore_eos=True)
        llm.engine.add_request("traced", [1, 2, 3, 4], params)
        for _ in range(num_warmup):
            llm.engine.step()
        with counter.counting() as calls:
            llm.engine.step()
    return Trace(calls)


def trace_http(device: str, max_tokens: int) -> dict[str, Trace]:
    """One streamed chat request: the traces of the server's process and of the engine's."""
    import httpx
    from tests.soak.server import started

    flags = ["--max-model-len", "256", "--device", device]
    messages = [{"role": "user", "content": "Tell me a story about a fox."}]
    with (
        tempfile.TemporaryDirectory(prefix="trace-") as name,
        _hooked_children(folder := Path(name)),
        started(flags) as server,
    ):
        (engine_pid,) = server.engine_pids()
        pids = {"server": server.pid, "engine": engine_pid}
        body = {"model": server.model, "messages": messages, "max_tokens": max_tokens, "stream": True}

        def ask() -> None:
            with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
                response.raise_for_status()
                assert any("[DONE]" in line for line in response.iter_lines())

        for _ in range(2):
            ask()
        found: dict[str, list[Trace]] = {name: [] for name in pids}
        for _ in range(_NUM_TRACES):
            for pid in pids.values():
                _signal_and_wait(folder, pid, START, "started")
            ask()
            for name, pid in pids.items():
                found[name].append(Trace(json.loads(_signal_and_wait(folder, pid, STOP, "calls").read_text())))
        return {name: reduce(Trace.common, traces) for name, traces in found.items()}


def trace_on_signals(folder: Path) -> None:
    """In a child process: count calls between START and STOP, and write them to `<pid>.calls` in a folder."""
    counter = CallCounter()
    counter.install()

    def start(_: int, __: FrameType | None) -> None:
        counter.start()
        _write(folder / f"{os.getpid()}.started", "")

    def stop(_: int, __: FrameType | None) -> None:
        _write(folder / f"{os.getpid()}.calls", json.dumps(counter.stop()))

    signal.signal(START, start)
    signal.signal(STOP, stop)


@contextmanager
def _hooked_children(folder: Path) -> Iterator[None]:
    """Child processes of this one run `trace_on_signals` as they start: Python imports `sitecustomize` by itself."""
    (folder / "sitecustomize.py").write_text(
        "import importlib.util, pathlib, sys\n"
        f"spec = importlib.util.spec_from_file_location('trace_files', {__file__!r})\n"
        "sys.modules['trace_files'] = module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        f"module.trace_on_signals(pathlib.Path({str(folder)!r}))\n"
    )
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _signal_and_wait(folder: Path, pid: int, number: signal.Signals, suffix: str) -> Path:
    """Send a signal and return the file that the process writes for it."""
    answer = folder / f"{pid}.{suffix}"
    os.kill(pid, number)
    until = time.monotonic() + _PATIENCE_S
    while not answer.exists():
        if time.monotonic() > until:
            raise RuntimeError(f"process {pid} did not answer {number.name}")
        time.sleep(0.01)
    return answer.rename(answer.with_suffix(".read"))


def _write(path: Path, text: str) -> None:
    """Write a file that is complete as soon as it exists."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.rename(path)


def main() -> None:
    """Trace the three paths and print what they cross."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print everything as JSON: totals, files and functions")
    parser.add_argument("--list", action="store_true", help="list the files of each path, with their calls")
    parser.add_argument("--device", default="auto", help="the device to run on (default auto)")
    parser.add_argument("--max-tokens", type=int, default=8, help="tokens that a request generates (default 8)")
    options = parser.parse_args()
    counter = CallCounter()
    counter.install()
    of_http = trace_http(options.device, options.max_tokens)
    traces = {
        "generate": trace_generate(counter, options.device, options.max_tokens),
        "decode step": trace_decode_step(counter, options.device, options.max_tokens),
        "http chat": of_http["server"] + of_http["engine"],
        **{f"http chat, {name} process": trace for name, trace in of_http.items()},
    }
    results = {name: trace.as_json() for name, trace in traces.items()}
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'path':26} {'files':>6} {'functions':>10} {'calls':>7}")
    for name, result in results.items():
        print(f"{name:26} {result['num_files']:6} {result['num_functions']:10} {result['num_calls']:7}")
    if options.list:
        for name, result in results.items():
            print(f"\n{name}")
            for file, count in result["files"].items():
                print(f"{count:7}  {file}")


if __name__ == "__main__":
    main()

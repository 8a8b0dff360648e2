"""What is checked on a GPU, the most telling first; each writes what it found before the next begins."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.cuda.check.kernels import reason_to_keep
from tests.cuda.check.machine import find_tool, target
from tests.cuda.check.records import CASES_FILE
from tests.cuda.check.running import Step
from tests.cuda.check.sanitized import OPTIONS, TOOLS

from aethermind import testing
from aethermind_cuda.probe import capability_of_first, probe_driver

__all__ = ["reason_against_machine", "sanitizing_steps", "steps"]

_SUITES = Path(testing.__file__).parent / "suites"
_HARDWARE = "tests/cuda/hardware"
_WORKERS = 12
_SHAPES = {
    "linear": 12,
    "gate_up": 8,
    "qkv": 8,
    "decode": 12,
    "prefill": 12,
    "scored": 8,
    "mixture": 14,
    "latent": 15,
    "quantized": 22,
    "recurrent": 15,
    "sampling": 13,
    "adapters": 8,
}
"""Groups of `shapes`, and the seconds that each should take at most."""


def reason_against_machine() -> str | None:
    """Why nothing can be checked here; that kernels are not compiled yet is no reason."""
    answer = probe_driver()
    return None if answer.is_available else answer.reason


def steps(out: Path, *, is_small: bool = False, samples: str = "") -> list[Step]:
    """All of them; those that need what is not here say so. `is_small` rehearses them with narrow matrices.

    Sanitizers take the samples whose names contain one part of `samples`, with commas between.
    """
    torch = None if find_spec("torch") else "it compares with torch, which is not installed"
    transformers = None if find_spec("torch") and find_spec("transformers") else "it needs torch and transformers"
    small = ["--small"] if is_small else []
    built = target()
    compile_kernels = ["aethermind-cuda/build_kernels.py", "--targets", built, "--jobs", "16"]
    kept = reason_to_keep(built, capability_of_first())

    def recorded(title: str, command: Sequence[str], limit_s: float, reason: str | None, min_s: float) -> Step:
        environment = {CASES_FILE: str(out / "cases.jsonl")}
        return Step(title, command, limit_s, reason, min_s=min_s, environment=environment)

    shapes = [
        recorded(f"shapes: {group}", _worker(group, "tests.cuda.check.shapes", group, *small), 60, torch, min_s)
        for group, min_s in _SHAPES.items()
    ]
    return [
        Step("compile kernels", _python(*compile_kernels), 150, kept, min_s=30, is_needed=True),
        Step("machine", _python("-m", "tests.cuda.check.machine"), 25, min_s=5),
        recorded("loading", _python("-m", "tests.cuda.check.loading"), 40, None, 8),
        *shapes,
        recorded("figures", _figures(*small), 90, None, 45),
        recorded("figures int4", _figures(*small, "int4"), 60, None, 25),
        recorded("figures fp8", _figures(*small, "fp8"), 60, None, 15),
        recorded("figures mixture", _figures(*small, "mixture"), 50, None, 20),
        recorded("figures mixture int4", _figures(*small, "mixture", "int4"), 50, None, 22),
        recorded("prefill stream", _stream_figures(*small), 75, None, 12),
        Step("conform: operators", _conform(out, "operators", "-n", str(_WORKERS)), 80, min_s=32),
        Step("conform: hal", _conform(out, "hal"), 30, min_s=5),
        Step("conform: models", _conform(out, "models"), 45, min_s=14),
        Step("hardware tests", _pytest("-k", "not parity and not ragged"), 60, min_s=20),
        Step("ragged batches", _pytest("-k", "ragged", "-n", str(_WORKERS)), 60, min_s=35),
        Step("parity", _pytest("-k", "parity and not recurrent", "-n", "6"), 90, transformers, min_s=40),
        Step("parity: recurrent", _pytest("-k", "recurrent_parity", "-n", "6"), 60, transformers, min_s=20),
        *sanitizing_steps(out, 60, min_s=20, samples=samples),
        profiling_step(out, 45, min_s=20),
        Step("transformers", _python("-m", "tests.cuda.check.transformers_figures"), 120, transformers, min_s=25),
    ]


def sanitizing_steps(
    out: Path, limit_s: float, *, min_s: float = 5, everything: bool = False, samples: str = ""
) -> list[Step]:
    """compute-sanitizer over a sample of every entry point, or all: stray access, and races for shared memory."""
    sanitizer = find_tool("compute-sanitizer")
    reason = None if sanitizer else "compute-sanitizer, which comes with the CUDA toolkit, was not found"

    def command(tool: str) -> list[str]:
        if not everything:
            return _python("-m", "tests.cuda.check.sanitized", tool, "--samples", samples)
        report = ["--conformance-report", str(out / "cases.jsonl"), "-q"]
        suite = _python("-m", "aethermind.testing", str(_SUITES / "test_operators.py"), "--backend", "cuda", *report)
        return [str(sanitizer), f"--tool={tool}", *OPTIONS, *suite]

    environment = {CASES_FILE: str(out / "cases.jsonl")}
    return [Step(tool, command(tool), limit_s, reason, min_s=min_s, environment=environment) for tool in TOOLS]


def profiling_step(out: Path, limit_s: float, *, min_s: float) -> Step:
    """ncu over one call each of the kernels that a token's time goes to, with the card's clocks as they are."""
    ncu = find_tool("ncu")
    reason = None if ncu else "ncu, which comes with the CUDA toolkit, was not found"
    if not find_spec("torch"):
        reason = "it makes its inputs with torch, which is not installed"
    sections = [part for name in ("SpeedOfLight", "Occupancy", "WarpStateStats") for part in ("--section", name)]
    chosen = "regex:^(linear|gate_up|paged|sample|qkv|add_rms|dequantize|gated_delta|ssd)"
    options = ["--clock-control", "none", "--kernel-name-base", "function", "-k", chosen, *sections]
    command = [str(ncu), *options, *_python("-m", "tests.cuda.check.shapes", "profiled", "--once")]
    environment = {CASES_FILE: str(out / "cases.jsonl")}
    return Step("ncu", command, limit_s, reason, min_s=min_s, environment=environment)


def _python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def _worker(suite: str, module: str, *arguments: str, patience: float = 25) -> list[str]:
    watched = _python("-m", module, *arguments)
    return _python("-m", "tests.cuda.check.workers", suite, "--patience", str(patience), "--", *watched)


def _figures(*arguments: str) -> list[str]:
    suite = " ".join(["figures", *(word for word in arguments if not word.startswith("-"))])
    return _worker(suite, "tests.cuda.check.figures", *arguments, patience=60)


def _stream_figures(*arguments: str) -> list[str]:
    return _worker("prefill stream", "tests.cuda.check.stream_figures", *arguments, patience=15)


def _pytest(*arguments: str) -> list[str]:
    plain = ["-q", "--tb=short", "--confcutdir=tests/cuda/hardware", "-m", "cuda", _HARDWARE]
    return _python("-m", "pytest", *plain, *_isolated(arguments))


def _conform(out: Path, suite: str, *arguments: str) -> list[str]:
    report = ["--conformance-report", str(out / "cases.jsonl"), "-q", "--tb=short"]
    file = str(_SUITES / f"test_{suite}.py")
    return _python("-m", "aethermind.testing", file, "--backend", "cuda", *report, *_isolated(arguments))


def _isolated(arguments: Sequence[str]) -> list[str]:
    """Options for plugins of pytest that may be missing: then one process runs everything, without a limit a case."""
    given = list(arguments)
    if "-n" in given and not find_spec("xdist"):
        position = given.index("-n")
        del given[position : position + 2]
    if "-n" in given:
        given += ["--max-worker-restart", "60"]
    if find_spec("pytest_timeout"):
        given += ["--timeout", "40", "--timeout-method", "thread"]
    return [*given, "-p", "tests.cuda.check.lost_device"]

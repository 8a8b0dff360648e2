"""`aethermind bench limits`: what a device reaches at best, measured."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from aethermind.cli import console, options

if TYPE_CHECKING:
    from aethermind.hal.backend import Backend, MeasuredLimits

__all__ = ["EXAMPLES", "Limits", "describe_limits", "limits", "measure_limits"]

EXAMPLES = console.examples("aethermind bench limits", "aethermind bench limits --threads 2 --json")

_SHORT_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes read and operations done per second, by short dtype name; None where the backend does not measure it."""

    memory_bytes_per_s: float | None
    flops_per_s: dict[str, float | None]

    def peak(self, dtype: str) -> float | None:
        """Operations per second for a dtype in its long name."""
        return next((self.flops_per_s[short] for short, label in _SHORT_NAMES.items() if label == dtype), None)

    def as_record(self) -> dict[str, Any]:
        """The limits for `--json`."""
        return {"memory_bytes_per_s": self.memory_bytes_per_s, "flops_per_s": self.flops_per_s}

    @classmethod
    def average(cls, measured: Sequence[MeasuredLimits | None]) -> Limits:
        """The mean of measurements made around a run."""
        present = [one for one in measured if one is not None]
        if not present:
            return cls(None, dict.fromkeys(_SHORT_NAMES))
        flops = {short: _mean([one.flops_per_s.get(label) for one in present]) for short, label in _SHORT_NAMES.items()}
        return cls(mean(one.memory_bytes_per_s for one in present), flops)


def limits(
    device: options.Device = "auto",
    threads: options.NumThreads = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure memory bandwidth and peak arithmetic of a device."""
    from aethermind.runtime import Runtime

    opened = Runtime.boot().open_device(device, num_threads=threads)
    with closing(opened.backend):
        measured = Limits.average([measure_limits(opened.backend, threads)])
    if as_json:
        console.print_json({"device": str(opened.device), "num_threads": opened.num_threads, **measured.as_record()})
    else:
        print(f"{opened.device}, {opened.num_threads} threads")
        print(console.columns(describe_limits(measured)))


def measure_limits(backend: Backend, num_threads: int | None) -> MeasuredLimits | None:
    """Ask a backend for its limits in the dtypes that are reported."""
    from aethermind.hal.dtype import DType

    return backend.measure_limits([DType.parse(label) for label in _SHORT_NAMES.values()], num_threads)


def describe_limits(measured: Limits) -> list[tuple[str, str]]:
    """Limits as rows of text."""
    bandwidth = measured.memory_bytes_per_s
    rows = [("memory", "not measured by this device" if bandwidth is None else console.quantity(bandwidth, "B/s"))]
    rows += [
        (name, console.quantity(value, "FLOP/s")) for name, value in measured.flops_per_s.items() if value is not None
    ]
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return mean(present) if present else None

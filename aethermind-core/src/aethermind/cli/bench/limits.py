"""`aethermind bench limits`: measured memory bandwidth and peak arithmetic of a device."""

from __future__ import annotations

from contextlib import closing
from statistics import mean
from typing import TYPE_CHECKING, Any

from aethermind.cli import console, options
from aethermind.cli.flags import with_settings

if TYPE_CHECKING:
    from aethermind.hal.backend import Backend, MeasuredLimits

__all__ = ["EXAMPLES", "as_record", "average", "describe_limits", "limits", "measure_limits", "num_kv_blocks_of"]

EXAMPLES = console.examples("aethermind bench limits", "aethermind bench limits --threads 2 --json")

_SHORT_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn", "int8": "int8"}


@with_settings
def limits(
    *,
    device: options.Device,
    num_threads: options.NumThreads,
    as_json: options.AsJson = False,
) -> None:
    """Measure memory bandwidth and peak arithmetic of a device."""
    from aethermind.runtime import Runtime

    opened = Runtime.boot().open_device(device, num_threads=num_threads)
    with closing(opened.backend):
        measured = measure_limits(opened.backend, num_threads)
    if as_json:
        console.print_json({"device": str(opened.device), "num_threads": opened.num_threads, **as_record(measured)})
    else:
        print(f"{opened.device}, {opened.num_threads} threads")
        print(console.columns(describe_limits(measured)))


def measure_limits(backend: Backend, num_threads: int | None) -> MeasuredLimits | None:
    """Measure a backend's limits in the reported dtypes; None if it does not support that."""
    from aethermind.hal.dtype import DType

    return backend.measure_limits([DType.parse(label) for label in _SHORT_NAMES.values()], num_threads)


def num_kv_blocks_of(device: str, batch: int, num_tokens: int) -> int:
    """Return the number of KV cache blocks, of the device's default size, for a batch of contexts of `num_tokens`."""
    from aethermind.runtime import Runtime

    backend = Runtime.boot().devices.open(device)[1]
    with closing(backend):
        return batch * -(-num_tokens // backend.capabilities.default_block_size)


def average(*measured: MeasuredLimits | None) -> MeasuredLimits | None:
    """Return the mean of measured limits; None if the backend measures none."""
    from aethermind.hal.backend import MeasuredLimits

    present = [limits for limits in measured if limits is not None]
    if not present:
        return None
    rates = {label: mean(limits.flops_per_s[label] for limits in present) for label in present[0].flops_per_s}
    return MeasuredLimits(mean(limits.memory_bytes_per_s for limits in present), rates)


def as_record(measured: MeasuredLimits | None) -> dict[str, Any]:
    """Return limits for `--json`: bytes per second, and operations per second by short dtype name; None if unknown."""
    return {
        "memory_bytes_per_s": measured and measured.memory_bytes_per_s,
        "flops_per_s": {short: measured and measured.flops_per_s.get(label) for short, label in _SHORT_NAMES.items()},
    }


def describe_limits(measured: MeasuredLimits | None) -> list[tuple[str, str]]:
    """Return limits as rows of a table."""
    if measured is None:
        return [("memory", "not measured by this device")]
    rates = as_record(measured)["flops_per_s"]
    return [
        ("memory", console.quantity(measured.memory_bytes_per_s, "B/s")),
        *((name, console.quantity(rate, "FLOP/s")) for name, rate in rates.items() if rate is not None),
    ]

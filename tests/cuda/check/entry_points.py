"""The fewest samples of the conformance kit that launch every entry point: what a sanitizer has time for.

Which sample launches what is found out over a driver that computes nothing, of GPUs like the first one here.

    python -m tests.cuda.check.entry_points SUITE [--shard 2/4] [--samples int4,sample_tokens]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.cuda.check.machine import target
from tests.cuda.check.records import CaseLog
from tests.cuda.fake_gpus import ATTRIBUTES
from tests.cuda.host_driver import HostDriver, fake_cubins

from aethermind import Runtime
from aethermind.dispatch import Dispatcher
from aethermind.dispatch.reference import rounded_inputs
from aethermind.hal import DeviceId
from aethermind.runtime import OpenDevice
from aethermind.testing.kernel_cases import kernel_cases
from aethermind.testing.operator_calls import KernelCase, check_kernel, run_kernel
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.library import Cubins

__all__ = ["all_cases", "covering_cases", "shard_of"]

SOURCES = Path(__file__).parents[3] / "aethermind-cuda" / "csrc"


class _NoProducts:
    """In place of cuBLASLt, whose kernels are not ours to check."""

    def bind(self, _product: object) -> Any:
        return lambda _stream: None

    def choose(self, product: object) -> Any:
        return lambda *_addresses: self.bind(product)

    def close(self) -> None: ...


def all_cases(runtime: Runtime) -> list[KernelCase]:
    """Those of the operators suite."""
    return list(kernel_cases(runtime.operators, runtime.kernels.kernels("cuda"), runtime.weight_formats))


def shard_of(text: str) -> tuple[int, int]:
    """The first sample of a shard and the distance to its next: `2/4` is every fourth from the second on."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 2/4, the second of four shards")
    return int(number) - 1, int(count)


def covering_cases(runtime: Runtime, parts: Sequence[str] = ("",)) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Cases of which each launches an entry point that none before it did, and those points.

    Only the cases whose names contain one of `parts` are tried.
    """
    with TemporaryDirectory() as folder:
        driver = HostDriver()
        backend = CudaBackend(driver, _cubins(Path(folder)))
        opened = OpenDevice(backend, DeviceId("cuda", 0), Dispatcher([]), "chosen by the check", None)
        backend._library(0).__dict__["cublas"] = _NoProducts()
        known: set[str] = set()
        for case in all_cases(runtime):
            if not any(part in str(case) for part in parts):
                continue
            driver.launches.clear()
            inputs = rounded_inputs(case.operator, case.sample, case.float_type)
            run_kernel(case, runtime.operators, opened, inputs)
            new = {launch.function for launch in driver.launches} - known
            if new:
                known |= new
                yield case, frozenset(new)
        backend.close()


def _cubins(folder: Path) -> Cubins:
    return fake_cubins(folder, [source.stem for source in SOURCES.glob("*.cu")], (target(),))


def main() -> int:
    """Run them on the card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--shard", type=shard_of, default=(0, 1), help="which part of the samples, for instance 2/4")
    parser.add_argument("--samples", default="", help="those whose names contain one of these, with commas between")
    arguments = parser.parse_args()
    log = CaseLog.of_environment(arguments.suite)
    runtime = Runtime.boot()
    begun = log.begun()
    opened = runtime.open_device("cuda")
    backend = opened.backend
    assert isinstance(backend, CudaBackend)
    ATTRIBUTES.update({number: backend._driver.device_attribute(0, number) for number in ATTRIBUTES})
    first, distance = arguments.shard
    for case, entries in islice(covering_cases(runtime, arguments.samples.split(",")), first, None, distance):
        if str(case) not in begun:
            with log.case(str(case)) as facts:
                facts["entry points"] = len(entries)
                check_kernel(case, runtime.operators, opened)
    opened.backend.close()
    return 1 if log.failures() else 0


if __name__ == "__main__":
    sys.exit(main())

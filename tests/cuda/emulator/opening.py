"""`--device cuda` on an emulated GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cuda.emulator.arguments import JudgedParameters
from tests.cuda.emulator.builder import CSRC
from tests.cuda.emulator.driver import EmulatedDriver
from tests.cuda.fake_gpus import ATTRIBUTES
from tests.cuda.host_driver import fake_cubins

from aethermind.hal import Probe
from aethermind_cuda.backend import CudaBackend

__all__ = ["emulated_cuda"]


@contextmanager
def emulated_cuda(folder: Path, seed: int = 0, attributes: Mapping[int, int] = ATTRIBUTES) -> Iterator[EmulatedDriver]:
    """A driver that all backends opened inside run on, with our kernels alone; `folder` gets what stands for cubins.

    `attributes` are the GPU's, of an A100 unless given.
    """
    driver = EmulatedDriver(seed)
    target = {8: "80", 9: "90a"}[attributes[75]]
    cubins = fake_cubins(folder, sorted(source.stem for source in CSRC.glob("*.cu")), (target,))
    with pytest.MonkeyPatch.context() as patch:
        for number, value in attributes.items():
            patch.setitem(ATTRIBUTES, number, value)
        patch.setattr("aethermind_cuda.probe.probe", lambda: Probe(1, "one GPU, which is emulated."))
        patch.setattr("aethermind_cuda.probe.open_backend", lambda: CudaBackend(driver, cubins))
        patch.setattr("aethermind_cuda.kernels._cublaslt.find_cublaslt", lambda: None)
        patch.setattr("aethermind_cuda.kernels._triton_attention.first_capability", lambda: None)
        for name, module in list(sys.modules.items()):
            if name.startswith("aethermind_cuda.") and hasattr(module, "Parameters"):
                patch.setattr(module, "Parameters", JudgedParameters)
        yield driver

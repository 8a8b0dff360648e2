"""The subjects as a plugin: their sources as they are, or with the one bug that PLANTED_BUG names.

The device `planted` is made of threads and computes by torch; kernels in C++ join the plans of `cpu`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from aethermind.dispatch import Kernel
from aethermind.hal import Backend, Probe
from aethermind.plugins import hookimpl

__all__ = ["FOLDER", "VARIABLE"]

SUBJECT = Path(__file__).parent / "subject"
VARIABLE, FOLDER = "PLANTED_BUG", "PLANTED_FOLDER"


def _source_of(file: str) -> str:
    """The text of a file of the subjects, with the bug in it if it is of this file."""
    from tests.conformance.planted.bugs import BUGS

    text = (SUBJECT / file).read_text(encoding="utf-8")
    name = os.environ.get(VARIABLE)
    bug = next(bug for bug in BUGS if bug.name == name) if name else None
    return text if bug is None or bug.file != file else bug.planted_in(text)


@cache
def _module(file: str) -> ModuleType:
    name = f"planted_{Path(file).stem}"
    module = ModuleType(name)
    module.__file__ = str(SUBJECT / file)
    sys.modules[name] = module
    exec(compile(_source_of(file), str(SUBJECT / file), "exec"), module.__dict__)
    return module


def _open() -> Backend:
    backend: Backend = _module("device.py").ThreadBackend()
    return backend


def _kernels() -> Sequence[Kernel]:
    kernels: Sequence[Kernel] = _module("kernels.py").kernels(_module("logits.py"))
    return kernels


def _native_kernels() -> Sequence[Kernel]:
    from tests.conformance.planted.native import native_kernels

    return native_kernels(_source_of("kernels.cpp"), Path(os.environ[FOLDER]))


@hookimpl
def register_devices(registry: Any) -> None:
    probe = Probe(1, "It is made of threads.")
    registry.register("planted", probe=lambda: probe, open=_open, priority=-9, provider="planted")


@hookimpl
def register_kernels(registry: Any) -> None:
    registry.register("planted", _kernels, provider="planted")
    registry.register("cpu", _native_kernels, provider="planted")

"""A stand-in for torch_npu: a torch device on top of the simulator.

Two devices with memory that the host cannot access and streams that run late under AETHERMIND_SIM_SEED. It has exactly
the operators of `signatures.txt`, which was read from a wheel of the real package. `calls` counts device calls by name.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from torch_npu import npu

__all__ = ["calls", "npu"]

calls: Counter[str] = Counter()


def _record(name: str, _: Any, __: Any) -> None:
    calls[name] += 1


def _signatures() -> tuple[list[str], dict[str, str]]:
    lines = Path(__file__).parents[2].joinpath("signatures.txt").read_text(encoding="utf-8").splitlines()
    kinds = [line.split(" ", 1) for line in lines]
    schemas = {text.partition("(")[0]: text for kind, text in kinds if kind == "npu"}
    return [text for kind, text in kinds if kind == "aten"], schemas


def _with_pinned_memory(empty: Any) -> Any:
    """torch uses C++ hooks for pinned memory, which a Python device does not have."""

    @wraps(empty)
    def allocate(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if not pin_memory:
            return empty(*size, **options)
        (length,) = size
        submit = npu.default_stream().submit
        return memory.empty((length,), (1,), options.get("dtype") or torch.float32, None, submit)

    return allocate


_setup_privateuseone_for_python_backend("npu", sys.modules["torch_npu.npu"])
from torch_npu import dispatch, distributed, memory, operators

_aten, _schemas = _signatures()
dispatch.register(_aten, _record)
operators.register(_schemas, _record)
distributed.register()
for _name in _schemas:
    globals()[_name] = getattr(torch.ops.npu, _name)
torch.empty = _with_pinned_memory(torch.empty)

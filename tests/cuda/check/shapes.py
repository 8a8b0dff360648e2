"""Operators at the sizes of Qwen2-7B and of other models: right against torch in float32, and how fast beside torch.

    python -m tests.cuda.check.shapes GROUP     one of GROUPS

A case fails where its relative error is above its bar. Times are those of the device over calls in one graph, which
take turns in enough weights to miss the L2 cache; each is beside its rate in GB/s and TFLOP/s, and beside torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping

import torch
from tests.cuda.check.adapters import Adapters
from tests.cuda.check.attention import Attention
from tests.cuda.check.bench import SMALL, Bench, Case, Sizes
from tests.cuda.check.gpu import Gpu
from tests.cuda.check.latent import Latent
from tests.cuda.check.mixture import Mixtures
from tests.cuda.check.projections import Projections
from tests.cuda.check.records import CaseLog
from tests.cuda.check.recurrent import Recurrent
from tests.cuda.check.sampling import Sampling

__all__ = ["GROUPS"]

GROUPS: Mapping[str, Callable[[Bench], Iterator[Case]]] = {
    "linear": lambda bench: Projections(bench).linear(),
    "gate_up": lambda bench: Projections(bench).gate_up(),
    "qkv": lambda bench: Projections(bench).qkv(),
    "decode": lambda bench: Attention(bench).decode(),
    "prefill": lambda bench: Attention(bench).prefill(),
    "scored": lambda bench: Attention(bench).scored(),
    "mixture": lambda bench: Mixtures(bench).mixture(),
    "latent": lambda bench: Latent(bench).latent(),
    "quantized": lambda bench: Projections(bench).quantized(),
    "sampling": lambda bench: Sampling(bench).sampling(),
    "recurrent": lambda bench: Recurrent(bench).recurrent(),
    "adapters": lambda bench: Adapters(bench).adapters(),
    "profiled": lambda bench: _profiled(bench),
}
_PROFILED = {
    "linear": ("down 1", "q 1", "lm_head 1"),
    "gate_up": ("gate_up 1",),
    "qkv": ("qkv 1",),
    "decode": ("decode 1 x 16384", "decode 8 x 1024", "decode 64 x 1024"),
    "prefill": ("prefill 2048 of 2048",),
    "quantized": ("int4 down 1", "int4 gate_up 1", "int4 gate_up 32", "int4 gate_up 64", "int4 down 64"),
    "sampling": ("plain 256", "top_p 256"),
    "recurrent": ("qwen3_next decode 64", "qwen3_next prefill 2048", "mamba2 decode 64"),
}


def _profiled(bench: Bench) -> Iterator[Case]:
    """One case of each kind of kernel."""
    for group, names in _PROFILED.items():
        yield from (case for case in GROUPS[group](bench) if case[0] in names)


def main() -> int:
    """Run the cases of a group that did not begin before."""
    group, sizes = sys.argv[1], SMALL if "--small" in sys.argv else Sizes()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    log = CaseLog.of_environment(group)
    begun = log.begun()
    for name, run in GROUPS[group](Bench(Gpu.open(), sizes, is_timed="--once" not in sys.argv)):
        if name in begun:
            continue
        with log.case(name) as facts, torch.inference_mode():
            run(facts)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())

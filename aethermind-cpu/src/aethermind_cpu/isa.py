"""Levels of instruction sets, and the highest one that kernels may use here."""

from __future__ import annotations

import os
from enum import Enum

from aethermind.errors import InvalidArgumentError
from aethermind_cpu import _native

__all__ = ["Isa", "isa_limit"]


class Isa(Enum):
    """A level, with the CPU features it needs; each level includes the ones before it."""

    PORTABLE = ("portable", frozenset[str]())
    AVX2 = ("avx2", frozenset({"avx2", "fma", "f16c"}))
    AVX512 = ("avx512", AVX2[1] | {"avx512f", "avx512bw", "avx512dq", "avx512vl"})
    AVX512_BF16 = ("avx512_bf16", AVX512[1] | {"avx512_bf16", "avx512_vnni"})

    def __init__(self, label: str, features: frozenset[str]) -> None:
        self.label = label
        self.features = features

    @property
    def level(self) -> int:
        """Its place in the order of levels."""
        return list(Isa).index(self)

    @classmethod
    def parse(cls, name: str) -> Isa:
        """Read a level by its name, with or without the underscore; anything else is an InvalidArgumentError."""
        for isa in cls:
            if isa.label.replace("_", "") == name.replace("_", ""):
                return isa
        known = ", ".join(isa.label for isa in cls)
        raise InvalidArgumentError(f"Unknown CPU instruction set {name!r} in AETHERMIND_CPU_ISA. Known: {known}.")


def isa_limit() -> Isa:
    """The highest level this CPU has, or `AETHERMIND_CPU_ISA` where that is lower."""
    features = set(_native.cpu_features())
    present = [isa for isa in Isa if isa.features <= features]
    wanted = os.environ.get("AETHERMIND_CPU_ISA")
    return min(present[-1], Isa.parse(wanted) if wanted else present[-1], key=lambda isa: isa.level)

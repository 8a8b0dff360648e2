"""Instruction set levels, and the highest one that kernels may use on this machine.

A level is a set of CPU features for which all kernels are compiled, such as `avx2` or `avx512_vnni`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from enum import Enum
from functools import cache

from aethermind.errors import InvalidArgumentError
from aethermind_cpu import _native

__all__ = ["Isa", "built_levels", "how_to_build_all", "isa_levels", "isa_limit"]


class Isa(Enum):
    """An instruction set level, with the CPU features it needs."""

    PORTABLE = ("portable", frozenset[str]())
    AVX2 = ("avx2", frozenset({"avx2", "fma", "f16c"}))
    AVX2_VNNI = ("avx2_vnni", AVX2[1] | {"avx_vnni"})
    AVX512 = ("avx512", AVX2[1] | {"avx512f", "avx512bw", "avx512dq", "avx512vl"})
    AVX512_VNNI = ("avx512_vnni", AVX512[1] | {"avx512_vnni"})
    AVX512_BF16 = ("avx512_bf16", AVX512_VNNI[1] | {"avx512_bf16"})
    AMX = ("amx", AVX512_BF16[1] | {"amx_tile", "amx_bf16", "amx_int8"})
    NEON = ("neon", frozenset({"asimd"}))
    NEON_DOT = ("neon_dot", NEON[1] | {"asimddp"})
    NEON_I8MM = ("neon_i8mm", NEON_DOT[1] | {"i8mm"})

    def __init__(self, label: str, features: frozenset[str]) -> None:
        self.label = label
        self.features = features

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether kernels multiply bfloat16 without widening it to float32."""
        return "avx512_bf16" in self.features

    @property
    def level(self) -> int:
        """Index in the order of the architecture's levels."""
        return next(levels.index(self) for levels in _LEVELS if self in levels)

    @classmethod
    def parse(cls, name: str) -> Isa:
        """Parse a level's name, with or without underscores; InvalidArgumentError for anything else."""
        return _parse(name, tuple(cls))


# In ascending order. A CPU may lack a level in between: many with AVX-512 have no AVX-VNNI.
_X86_64 = (Isa.PORTABLE, Isa.AVX2, Isa.AVX2_VNNI, Isa.AVX512, Isa.AVX512_VNNI, Isa.AVX512_BF16, Isa.AMX)
_AARCH64 = (Isa.PORTABLE, Isa.NEON, Isa.NEON_DOT, Isa.NEON_I8MM)
_LEVELS = (_X86_64, _AARCH64)


def isa_levels(features: Collection[str] | None = None) -> tuple[Isa, ...]:
    """Return the levels, in order, of the architecture of a CPU with these features (default: this CPU)."""
    return _AARCH64 if "asimd" in _features_or_own(features) else _X86_64


def built_levels() -> tuple[Isa, ...]:
    """Return the levels, in order, of which this build has all kernels."""
    return tuple(Isa.parse(name) for name in _native.BUILT_LEVELS)


def how_to_build_all() -> str:
    """Return the command that installs all levels of the architecture."""
    from aethermind.first_party import pip_install_command

    return (
        f"AETHERMIND_CPU_LEVELS=all {pip_install_command('aethermind-cpu')} --force-reinstall --no-deps --no-cache-dir"
    )


def isa_limit(features: Collection[str] | None = None, built: Collection[Isa] | None = None) -> Isa:
    """Return the highest built level that a CPU with these features supports (default: this CPU and build).

    A level of which only some kernels were built, because a higher level uses them, counts as well.
    `AETHERMIND_CPU_ISA` limits the level; InvalidArgumentError if it is not a level of the architecture, or was not
    built. InvalidArgumentError also if `AETHERMIND_CPU_TILES` is neither empty nor `model`.
    """
    tiles = os.environ.get("AETHERMIND_CPU_TILES")
    if tiles not in (None, "", "model"):
        raise InvalidArgumentError(
            f"AETHERMIND_CPU_TILES is {tiles!r}; set it to model, which stands in for AMX's tile unit, or unset it."
        )
    levels = isa_levels(features)
    complete = built_levels() if built is None else built
    name = os.environ.get("AETHERMIND_CPU_ISA")
    if name and (forced := _parse(name, levels)) not in complete:
        known = ", ".join(isa.label for isa in levels if isa in complete)
        raise InvalidArgumentError(
            f"AETHERMIND_CPU_ISA is {name!r}, which this build of aethermind-cpu does not have. It has {known}; "
            f"this installs all: {how_to_build_all()}"
        )
    allowed = levels[: forced.level + 1] if name else levels
    with_kernels = _levels_with_kernels() if built is None else built
    return [isa for isa in allowed if isa.features <= set(_features_or_own(features)) and isa in with_kernels][-1]


@cache
def _levels_with_kernels() -> frozenset[Isa]:
    entries = (*_native.kernel_table(), *_native.quantized_kernel_table())
    return frozenset(Isa.parse(name) for name in {entry.variant for entry in entries})


def _features_or_own(features: Collection[str] | None) -> Collection[str]:
    return _native.cpu_features() if features is None else features


def _parse(name: str, levels: tuple[Isa, ...]) -> Isa:
    for isa in levels:
        if isa.label.replace("_", "") == name.replace("_", ""):
            return isa
    known = ", ".join(isa.label for isa in levels)
    raise InvalidArgumentError(f"Unknown CPU instruction set {name!r} in AETHERMIND_CPU_ISA. Known here: {known}.")

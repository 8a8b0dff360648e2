"""How GPTQ and AWQ checkpoints store matrices, by `quantization_config` of config.json or a file of its own.

A matrix [N, K] is three tensors (and, by GPTQ, `g_idx`), with codes of few bits packed into int32 from the lowest bits:

    GPTQ    qweight [K · bits / 32, N], packed along K; qzeros [groups, N · bits / 32], packed along N; scales
            [groups, N]; g_idx [K], the group of each of K. `checkpoint_format` "gptq" stores zero points minus one,
            "gptq_v2" as they are. With `sym` zero points are the middle, which tells both apart where the name is wrong
    AWQ     qweight [K, N / 8] and qzeros [groups, N / 8], both packed along N, eight columns in the order 0 2 4 6 1 3
            5 7; scales [groups, N]. This is `version` "gemm"

A value is scale · (code − zero point). (Frantar et al. 2022; Lin et al. 2023; layouts as by AutoGPTQ and AutoAWQ.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.errors import ConfigError

__all__ = ["Packing", "read_packing"]

Array = npt.NDArray[Any]

_METHODS = ("gptq", "awq")
_BITS = {"gptq": (2, 3, 4, 8), "awq": (4,)}
_LAYOUTS = {"gptq": ("gptq", "gptq_v2"), "awq": ("gemm",)}
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Packing:
    """What a checkpoint's configuration says. `group_size` values along K share a scale, 0: all of them.

    `zero_shift` is what has to be added to zero points as they are stored, by the name of the layout; `is_symmetric`
    says that they are the middle of the codes.
    """

    method: str
    bits: int
    group_size: int
    zero_shift: int
    is_symmetric: bool = False

    @property
    def middle(self) -> int:
        """The zero point of symmetric codes."""
        return 1 << (self.bits - 1)

    def num_words(self, num_codes: int) -> int:
        """How many int32 a row of codes takes."""
        return num_codes * self.bits // 32

    def num_codes(self, num_words: int) -> int:
        """How many codes a row of int32 holds."""
        return num_words * 32 // self.bits

    def num_groups(self, num_columns: int) -> int:
        """Groups of K values."""
        return num_columns // self.group_size if self.group_size else 1

    def shape_of(self, qweight: tuple[int, ...]) -> tuple[int, int]:
        """(N, K) of a matrix, by the shape of its qweight, which has two dimensions."""
        first, second = qweight
        return (second, self.num_codes(first)) if self.method == "gptq" else (self.num_codes(second), first)

    def qweight_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """The shape of a qweight of (N, K)."""
        return (self.num_words(columns), rows) if self.method == "gptq" else (columns, self.num_words(rows))

    def codes(self, qweight: Array) -> Array:
        """Codes [N, K], uint8."""
        if self.method == "gptq":
            return self._unpacked(np.ascontiguousarray(qweight.T))
        return np.ascontiguousarray(self._in_order(self._unpacked(qweight)).T)

    def zeros(self, qzeros: Array) -> Array:
        """Zero points [N, groups], uint8."""
        # One less than zero is stored as the largest code.
        shifted = self._stored_zeros(qzeros) + np.uint8(self._shift_of(qzeros))
        return np.ascontiguousarray(shifted & np.uint8((1 << self.bits) - 1))

    def contradicts_name(self, qzeros: Array) -> bool:
        """Whether zero points are not stored as the layout's name says."""
        return self._shift_of(qzeros) != self.zero_shift

    def _shift_of(self, qzeros: Array) -> int:
        """What to add to zero points: so much that symmetric ones are the middle, if one layout or the other says so.

        Several tools write the first layout's name over zero points of the second; off by one, all weights are wrong.
        """
        if self.method == "gptq" and self.is_symmetric:
            stored = self._stored_zeros(qzeros)
            for shift in (self.zero_shift, 1 - self.zero_shift):
                if stored.size and (stored == self.middle - shift).all():
                    return shift
        return self.zero_shift

    def _stored_zeros(self, qzeros: Array) -> Array:
        return self._in_order(self._unpacked(qzeros)).T

    def _unpacked(self, words: Array) -> Array:
        stored = np.ascontiguousarray(words).view(np.uint8)
        if self.bits == 8:
            return stored
        if self.bits == 3:  # which cross the borders of bytes
            bits = np.unpackbits(stored, axis=1, bitorder="little").reshape(len(stored), -1, 3)
            return bits[:, :, 0] | bits[:, :, 1] << 1 | bits[:, :, 2] << 2
        per_byte = 8 // self.bits
        codes = np.empty((len(stored), per_byte * stored.shape[1]), np.uint8)
        for place in range(per_byte):
            codes[:, place::per_byte] = (stored >> (place * self.bits)) & ((1 << self.bits) - 1)
        return codes

    def _in_order(self, codes: Array) -> Array:
        if self.method == "gptq":
            return codes
        ordered = np.empty_like(codes)
        for position, column in enumerate(_AWQ_ORDER):
            ordered[:, column::8] = codes[:, position::8]
        return ordered


def read_packing(described: Any, where: str) -> Packing:
    """A description as a Packing; ConfigError for anything that is not GPTQ of 2, 3, 4 or 8 bits or AWQ of 4.

    `where` names the model in messages.
    """
    if not isinstance(described, Mapping):
        raise ConfigError(f"The quantization_config of {where!r} should be an object, not {type(described).__name__}.")
    method = _method(described, where)
    bits = _first(described, "bits", "w_bit")
    if isinstance(bits, str) and bits.isdecimal():
        bits = int(bits)
    group_size = _first(described, "group_size", "q_group_size")
    group_size = -1 if group_size is None else group_size
    if isinstance(bits, bool) or bits not in _BITS[method]:
        wanted = " or ".join(map(str, _BITS[method]))
        raise ConfigError(f"{where!r} is quantised by {method} to {bits!r:.80} bits; {wanted} bits can be read.")
    if type(group_size) is not int or not (group_size == -1 or group_size > 0):
        raise ConfigError(f"{where!r} has a quantization group_size of {group_size!r:.80}; that is a number, or -1.")
    layout = _layout(described, method, where)
    _check_modules(described, bits, group_size, where)
    zero_shift = 1 if layout == "gptq" else 0
    return Packing(method, bits, max(group_size, 0), zero_shift, described.get("sym") is not False)


def _method(described: Mapping[str, Any], where: str) -> str:
    """The method's name; ConfigError where it cannot be read."""
    given = described.get("quant_method") or _unnamed_method(described)
    method = given.lower() if isinstance(given, str) else given
    if method not in _METHODS:
        how = "in a way that its quantization_config does not name" if given is None else f"by {given!r:.80}"
        raise ConfigError(
            f"{where!r} is quantised {how}, which cannot be read. Take the model itself and pass "
            f"a format as quantization, or take it quantised by {' or '.join(_METHODS)}, or as .gguf."
        )
    return str(method)


def _layout(described: Mapping[str, Any], method: str, where: str) -> str:
    """The name of the layout in lower case; tools call the field by several names, and null is the usual one."""
    known = _LAYOUTS[method]
    names = ("checkpoint_format", "format") if method == "gptq" else ("version",)
    given = _first(described, *names)
    if described.get("is_marlin_format"):
        given = "marlin"
    if method == "awq" and str(described.get("backend") or "autoawq").lower() == "llm-awq":
        given = "llm-awq"
    layout = known[0] if given is None else str(given).lower()
    if layout not in known:
        raise ConfigError(
            f"{where!r} stores {method} weights in the layout {given!r:.80}; {' and '.join(known)} can be read. Take "
            "the model quantised in that layout, or as .gguf."
        )
    return layout


def _check_modules(described: Mapping[str, Any], bits: int, group_size: int, where: str) -> None:
    """ConfigError where GPTQModel's `dynamic` quantises some modules otherwise; modules left out (`-:`) are plain."""
    dynamic = described.get("dynamic") or {}
    others = dynamic.values() if isinstance(dynamic, Mapping) else ()
    for one in others:
        own = {"bits": bits, "group_size": group_size, **(one if isinstance(one, Mapping) else {})}
        if (own["bits"], own["group_size"]) != (bits, group_size):
            raise ConfigError(
                f"{where!r} has modules that are quantised otherwise than the rest (dynamic in quantization_config), "
                "which is not supported. Take a model that is quantised in one way, or as .gguf."
            )


def _first(described: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that says something."""
    return next((described[name] for name in names if described.get(name) is not None), None)


def _unnamed_method(described: Mapping[str, Any]) -> str | None:
    """The method of a description without quant_method, by the fields that only one tool writes; None for no known."""
    if described.get("load_in_8bit") or described.get("load_in_4bit"):
        return "bitsandbytes"
    if "config_groups" in described:
        return "compressed-tensors"
    # AWQ's own file says w_bit, and AutoGPTQ's own bits.
    return "awq" if "w_bit" in described else "gptq" if "bits" in described else None

"""How GPTQ and AWQ checkpoints store matrices, by `quantization_config` of config.json or by quantize_config.json.

A matrix [N, K] is three tensors (and, by GPTQ, `g_idx`), with codes of few bits packed into int32 from the lowest bits:

    GPTQ    qweight [K · bits / 32, N], packed along K; qzeros [groups, N · bits / 32], packed along N; scales
            [groups, N]; g_idx [K], the group of each of K. `checkpoint_format` "gptq" stores zero points minus one,
            "gptq_v2" as they are
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
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Packing:
    """What a checkpoint's configuration says. `group_size` values along K share a scale, 0: all of them.

    `zero_shift` is what has to be added to zero points as they are stored.
    """

    method: str
    bits: int
    group_size: int
    zero_shift: int

    @property
    def per_word(self) -> int:
        """Codes in an int32."""
        return 32 // self.bits

    def num_groups(self, num_columns: int) -> int:
        """Groups of K values."""
        return num_columns // self.group_size if self.group_size else 1

    def shape_of(self, qweight: tuple[int, ...]) -> tuple[int, int]:
        """(N, K) of a matrix, by the shape of its qweight, which has two dimensions."""
        first, second = qweight
        return (second, first * self.per_word) if self.method == "gptq" else (second * self.per_word, first)

    def qweight_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """The shape of a qweight of (N, K)."""
        return (columns // self.per_word, rows) if self.method == "gptq" else (columns, rows // self.per_word)

    def codes(self, qweight: Array) -> Array:
        """Codes [N, K], uint8."""
        if self.method == "gptq":
            return self._unpacked(np.ascontiguousarray(qweight.T))
        return np.ascontiguousarray(self._in_order(self._unpacked(qweight)).T)

    def zeros(self, qzeros: Array) -> Array:
        """Zero points [N, groups], uint8."""
        stored = self._in_order(self._unpacked(qzeros)).T
        # One less than zero is stored as the largest code.
        return np.ascontiguousarray((stored + np.uint8(self.zero_shift)) & np.uint8((1 << self.bits) - 1))

    def _unpacked(self, words: Array) -> Array:
        stored = np.ascontiguousarray(words).view(np.uint8)
        if self.bits == 8:
            return stored
        codes = np.empty((len(stored), 2 * stored.shape[1]), np.uint8)
        codes[:, ::2] = stored & 15
        codes[:, 1::2] = stored >> 4
        return codes

    def _in_order(self, codes: Array) -> Array:
        if self.method == "gptq":
            return codes
        ordered = np.empty_like(codes)
        for position, column in enumerate(_AWQ_ORDER):
            ordered[:, column::8] = codes[:, position::8]
        return ordered


def read_packing(described: Any, where: str) -> Packing:
    """A description as a Packing; ConfigError for anything that is not GPTQ of 4 or 8 bits or AWQ of 4.

    `where` names the model in messages.
    """
    if not isinstance(described, Mapping):
        raise ConfigError(f"The quantization_config of {where!r} should be an object, not {type(described).__name__}.")
    # Only AWQ's own file says w_bit; AutoGPTQ's own says neither that nor its method.
    given = described.get("quant_method", "awq" if "w_bit" in described else "gptq")
    method = given.lower() if isinstance(given, str) else given
    if method not in _METHODS:
        raise ConfigError(
            f"{where!r} is quantised by {given!r:.80}, which cannot be read. Take the model itself and pass "
            f"--quantization, or take it quantised by {' or '.join(_METHODS)}, or as .gguf."
        )
    bits = described.get("bits", described.get("w_bit"))
    if isinstance(bits, str) and bits.isdecimal():
        bits = int(bits)
    group_size = described.get("group_size", described.get("q_group_size"))
    group_size = -1 if group_size is None else group_size
    if isinstance(bits, bool) or bits not in ((4, 8) if method == "gptq" else (4,)):
        wanted = "4 or 8" if method == "gptq" else "4"
        raise ConfigError(f"{where!r} is quantised by {method} to {bits!r:.80} bits; {wanted} bits can be read.")
    if type(group_size) is not int or not (group_size == -1 or group_size > 0):
        raise ConfigError(f"{where!r} has a quantization group_size of {group_size!r:.80}; that is a number, or -1.")
    layout = described.get("checkpoint_format", "gptq") if method == "gptq" else described.get("version", "gemm")
    known = ("gptq", "gptq_v2") if method == "gptq" else ("gemm",)
    if str(layout).lower() not in known:
        raise ConfigError(
            f"{where!r} stores {method} weights in the layout {layout!r:.80}; {' and '.join(known)} can be read."
        )
    zero_shift = 1 if method == "gptq" and str(layout).lower() == "gptq" else 0
    return Packing(method, bits, max(group_size, 0), zero_shift)

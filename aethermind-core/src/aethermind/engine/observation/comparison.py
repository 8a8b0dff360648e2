"""Comparison of one request on two devices, value by value, to find the first divergence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from aethermind.engine.engine import Engine
from aethermind.errors import InvalidArgumentError
from aethermind.graph.hooks import ValueInfo
from aethermind.hal.dtype import DType
from aethermind.sampling.params import SamplingParams

__all__ = ["Comparison", "ComparisonTolerance", "Difference", "compare", "compare_arrays"]

_REQUEST_ID = "compare"
_DEFAULT_RTOL = {DType.FLOAT32: 1e-4, DType.FLOAT16: 2e-2, DType.BFLOAT16: 8e-2}
_DEFAULT_ATOL = 1e-5


@dataclass(frozen=True, slots=True)
class ComparisonTolerance:
    """The allowed error of an element: `atol` + `rtol` · the largest magnitude in its row (its last dim).

    Integers must be equal. Values carry the rounding of all operators before them, so this is wider than an operator's
    tolerance.
    """

    rtol: float
    atol: float

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise InvalidArgumentError(f"{name} should be a number from 0, got {value}.", param=name)

    @classmethod
    def of(cls, dtype: DType, rtol: float | None = None, atol: float | None = None) -> ComparisonTolerance:
        """Return a tolerance with the given bounds; the defaults fit the rounding of a model computed in `dtype`."""
        return cls(_DEFAULT_RTOL[dtype] if rtol is None else rtol, _DEFAULT_ATOL if atol is None else atol)


@dataclass(frozen=True, slots=True)
class Difference:
    """The error of one value of one step at its worst element: its index, and the values on both devices.

    Steps are counted from 0. `excess` is the error as a multiple of the allowed one; above 1 it diverges. Operator,
    kernel and layer are those of the tested device.
    """

    name: str
    step: int
    phase: str
    operator: str
    kernel: str
    layer: int | None
    shape: tuple[int, ...]
    dtype: str
    max_abs_error: float
    excess: float
    index: tuple[int, ...]
    expected: float
    actual: float

    @property
    def is_diverging(self) -> bool:
        """Whether the error exceeds the tolerance."""
        return self.excess > 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """All values of all steps that both devices computed, in order, and the names that only one of them has."""

    differences: tuple[Difference, ...]
    only_in_reference: tuple[str, ...]
    only_in_tested: tuple[str, ...]
    num_steps: int

    @property
    def first_divergence(self) -> Difference | None:
        """The earliest value beyond the tolerance."""
        return next((difference for difference in self.differences if difference.is_diverging), None)

    def worst_by_layer(self) -> dict[int | None, Difference]:
        """Return the value with the largest excess in each layer."""
        worst: dict[int | None, Difference] = {}
        for difference in self.differences:
            layer = difference.layer
            if layer not in worst or difference.excess > worst[layer].excess:
                worst[layer] = difference
        return worst


def compare(
    reference: Engine,
    tested: Engine,
    prompt_token_ids: Sequence[int],
    num_tokens: int,
    tolerance: ComparisonTolerance,
    *,
    fuse: bool = True,
) -> Comparison:
    """Generate greedily on two idle engines in lockstep, and compare the intermediate values with equal names.

    The comparison ends after `num_tokens` tokens, or when the two sample different ones. `fuse=False` runs both without
    fused operators.
    """
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    expected = _Recorder(reference)
    num_steps = 0
    differences: list[Difference] = []
    names: dict[str, None] = {}

    def check(name: str, array: Any, info: ValueInfo) -> None:
        names[name] = None
        if name in expected.values:
            actual = _computed_part(tested, array, info)
            compared = compare_arrays(expected.values[name], actual, tolerance)
            described = (info.phase, info.operator, info.kernel, info.layer, actual.shape, str(actual.dtype))
            differences.append(Difference(name, num_steps, *described, *compared))

    engines = (reference, tested)
    try:
        for engine in engines:
            engine.add_request(_REQUEST_ID, prompt_token_ids, params)
        with (
            reference.runner.hooks.on("*", expected, fuse=fuse),
            tested.runner.hooks.on("*", check, fuse=fuse),
        ):
            while reference.has_unfinished and tested.has_unfinished:
                expected.values.clear()
                token_ids = [[output.outputs[0].token_ids for output in engine.step()] for engine in engines]
                num_steps += 1
                if token_ids[0] != token_ids[1]:
                    break
    finally:
        for engine in engines:
            engine.abort(_REQUEST_ID)
    return Comparison(tuple(differences), _without(expected.names, names), _without(names, expected.names), num_steps)


def compare_arrays(
    expected: Any, actual: Any, tolerance: ComparisonTolerance
) -> tuple[float, float, tuple[int, ...], float, float]:
    """Return the largest error, the largest excess over the allowed error, the index of the latter, and both values
    there.

    If only one value is NaN, or the values are different infinities, the error is infinite.
    """
    import numpy as np

    if expected.shape != actual.shape:
        return float("inf"), float("inf"), (), float("nan"), float("nan")
    if expected.size == 0:
        return 0.0, 0.0, (), 0.0, 0.0
    is_floating = DType.of_numpy(expected.dtype).is_floating
    left, right = (np.atleast_1d(array.astype(np.float64)) for array in (expected, actual))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(left - right)
        error[(left == right) | (np.isnan(left) & np.isnan(right))] = 0
        error[np.isnan(error)] = np.inf
    allowed = 0.0
    if is_floating:
        magnitudes = np.abs(np.where(np.isfinite(left), left, 0)).max(axis=-1, keepdims=True)
        allowed = tolerance.atol + tolerance.rtol * magnitudes
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(error == 0, 0.0, error / allowed)
    position = np.unravel_index(int(excess.argmax()), excess.shape)
    index = tuple(int(i) for i in position) if expected.ndim else ()
    return float(error.max()), float(excess[position]), index, float(left[position]), float(right[position])


class _Recorder:
    """A hook that keeps copies of a step's values, and all names that occurred."""

    def __init__(self, engine: Engine) -> None:
        self.values: dict[str, Any] = {}
        self.names: dict[str, None] = {}
        self._engine = engine

    def __call__(self, name: str, array: Any, info: ValueInfo) -> None:
        self.names[name] = None
        self.values[name] = _computed_part(self._engine, array, info).copy()


def _computed_part(engine: Engine, array: Any, info: ValueInfo) -> Any:
    """Return the part of a value that the step computed: of a KV cache, the slots [tokens, kv heads, head dim]."""
    if not info.is_state:
        return array
    (request,) = engine.running
    begin = request.num_computed_tokens
    block_size = array.shape[2]
    slots = [engine.cache.slot(_REQUEST_ID, begin + offset) for offset in range(info.num_tokens)]
    return array[[slot // block_size for slot in slots], :, [slot % block_size for slot in slots]]


def _without(names: Iterable[str], others: dict[str, None]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in others)

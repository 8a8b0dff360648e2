"""A view of a checkpoint in a model's layout: tensors are renamed, transposed or sliced, their rows are reordered, or
a row vector is added to each of their rows.

Model graphs expect one matrix [out, in] per projection. Checkpoints with another layout (GPT-2's matrices are [in,
out], with a fused QKV matrix) are read through this view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError, ConfigError
from aethermind.ops.weight_format import QuantizedWeight
from aethermind.plugins.compatibility import deprecated_fields

__all__ = [
    "AdaptedTensors",
    "RemappedTensors",
    "StoredRows",
    "TensorSlice",
    "interleaved_heads",
    "matrices_of_stored",
    "pair_order",
    "renamed_prefixes",
    "rows_by_head",
    "rows_of_stored",
]

_MAX_NUM_ROWS = 2**22
"""The most rows of a matrix with heads: 30 times those of the largest published models."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A model's matrix as rows of a stored one, which may be stored transposed; `rows` is None for all, in order."""

    stored_name: str
    rows: npt.NDArray[np.int64] | None = None

    def of(self, source: StoredRows) -> StoredRows:
        """Return these rows as rows of another matrix, of which the stored matrix is `source`."""
        if self.rows is None or source.rows is None:
            return StoredRows(source.stored_name, self.rows if source.rows is None else source.rows)
        return StoredRows(source.stored_name, source.rows[self.rows])


@runtime_checkable
class RemappedTensors(StoredTensors, Protocol):
    """A view of `stored` that says which of its rows a tensor is."""

    stored: StoredTensors

    def stored_rows(self, name: str) -> StoredRows | None:
        """Return which rows of a stored matrix a tensor is; None if it is not made of rows of one matrix, or does not
        exist.
        """

    def stored_matrices(self, name: str) -> tuple[str, ...]:
        """Return the stored matrices whose rows a tensor consists of; none if columns or values are changed."""


def matrices_of_stored(view: StoredTensors, name: str, stored: StoredTensors) -> tuple[str, ...]:
    """Return the matrices of `stored` whose rows a tensor consists of, in a view of it or in a view of such a view.

    Empty if a matrix is transposed or changed otherwise, or if a view is no `RemappedTensors`.
    """
    if view is stored:
        return (name,)
    if not isinstance(view, RemappedTensors):
        return ()
    inner = view.stored
    return tuple(matrix for part in view.stored_matrices(name) for matrix in matrices_of_stored(inner, part, stored))


def rows_of_stored(view: StoredTensors, name: str, stored: StoredTensors) -> StoredRows | None:
    """Return which rows of which matrix of `stored` a tensor is in a view of it, or in a view of such a view.

    None if it is not made of rows of one matrix, or if a view is no `RemappedTensors`.
    """
    found = StoredRows(name)
    while view is not stored:
        if not isinstance(view, RemappedTensors):
            return None
        source = view.stored_rows(found.stored_name)
        if source is None:
            return None
        found, view = found.of(source), view.stored
    return found


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """A model's tensor as a slice of a stored one: it is transposed first, then rows `begin` to `end` are taken.

    A transposed tensor loses its inner dims of 1: the weight of a depthwise convolution [C, 1, K] becomes [K, C]. `end`
    is None for all rows from `begin` on. If `order` is given, the slice consists of these of its rows in that order,
    see `pair_order`. The first row of the tensor `added` is then added to every row. A quantised tensor may be sliced
    and ordered, since its rows are quantised separately.
    """

    stored_name: str
    is_transposed: bool = False
    begin: int = 0
    end: int | None = None
    added: str | None = None
    order: tuple[int, ...] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the tensor is only renamed."""
        return not self.is_transposed and self.begin == 0 and self.end is None and self.added is None and not self.order


def pair_order(num_heads: int, head_dim: int, rotary_dim: int | None = None) -> tuple[int, ...]:
    """The order of a projection's rows in which rotary pairs (2i, 2i + 1) of each head become (i, i + rotary_dim / 2).

    For `TensorSlice.order` of queries and keys, their biases and norms, in families with interleaved rotation (GPT-J,
    GLM, Cohere): scores do not depend on the order of a head's elements. `rotary_dim` is head_dim by default; the
    elements after it keep their places.
    """
    _check_num_rows(num_heads, head_dim)
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    head = [*range(0, rotary_dim, 2), *range(1, rotary_dim, 2), *range(rotary_dim, head_dim)]
    return tuple(first + row for first in range(0, num_heads * head_dim, head_dim) for row in head)


def interleaved_heads(
    names: Iterable[str], heads: Mapping[str, int], head_dim: int, rotary_dim: int | None = None
) -> dict[str, TensorSlice]:
    """Slices that reorder projections by `pair_order`: the weights and biases among `names` whose module's last name is
    in `heads`, which maps it to its number of heads, `{"q_proj": 32, "k_proj": 2}`.
    """
    orders = {module: pair_order(count, head_dim, rotary_dim) for module, count in heads.items()}
    modules = {name: name.rpartition(".")[0].rpartition(".")[2] for name in names}
    return {name: TensorSlice(name, order=orders[module]) for name, module in modules.items() if module in orders}


def rows_by_head(num_heads: int, widths: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Rows for `TensorSlice.order`, by part, of a matrix whose heads each consist of parts with these numbers of
    rows.
    """
    _check_num_rows(num_heads, sum(widths))
    firsts = [sum(widths[:part]) for part in range(len(widths))]
    return tuple(
        tuple(head * sum(widths) + first + row for head in range(num_heads) for row in range(width))
        for first, width in zip(firsts, widths, strict=True)
    )


def _check_num_rows(num_heads: int, head_dim: int) -> None:
    """ConfigError for sizes that no matrix has: the rows are listed in memory before a tensor is read."""
    if max(num_heads, 1) * max(head_dim, 1) > _MAX_NUM_ROWS:
        raise ConfigError(
            f"This model would have {num_heads:,} heads of {head_dim:,} elements, which no model has. Correct the "
            "number of heads or their size in its configuration."
        )


def renamed_prefixes(names: Iterable[str], prefixes: Mapping[str, str]) -> dict[str, TensorSlice]:
    """Slices that rename tensors which begin with one of the `prefixes`, by the beginnings of their new names."""
    return {
        new + name.removeprefix(old): TensorSlice(name)
        for name in names
        for old, new in prefixes.items()
        if name.startswith(old)
    }


@deprecated_fields(until="0.4", neutral_names="zero_bias_names")
class AdaptedTensors:
    """A checkpoint whose tensors are slices of stored tensors (`parts`, by name), and the stored tensors that no slice
    uses, unless `only_parts`.

    Implements `StoredTensors`. Immutable.
    """

    def __init__(self, stored: StoredTensors, parts: Mapping[str, TensorSlice], *, only_parts: bool = False) -> None:
        """Slices of tensors that the checkpoint lacks are left out: `match_names` reports them."""
        stored_names = set(stored.names)
        self.stored = stored
        self._parts = {name: part for name, part in parts.items() if part.stored_name in stored_names}
        used_names = {name for part in self._parts.values() for name in (part.stored_name, part.added)}
        if not only_parts:
            self._parts |= {name: TensorSlice(name) for name in stored.names if name not in used_names}
        self._num_needed_rows: dict[tuple[str, int, int | None], int] = {}
        for part in self._parts.values():
            if part.order:
                rows = _row_range(part)
                self._num_needed_rows[rows] = max(self._num_needed_rows.get(rows, 0), 1 + max(part.order))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parts)

    @property
    def total_bytes(self) -> int:
        return sum(self.info(name).num_bytes for name in self._parts)

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.stored.paths

    @property
    def zero_bias_names(self) -> tuple[str, ...]:
        return self.stored.zero_bias_names

    def info(self, name: str) -> TensorInfo:
        part = self._slice_of(name)
        stored = self.stored.info(part.stored_name)
        if part.is_whole:
            return stored
        if stored.weight_format is not None and (part.is_transposed or part.added is not None):
            raise _quantised_error(part.stored_name)
        shape = _transposed(stored.shape) if part.is_transposed else stored.shape
        num_rows = len(range(shape[0])[part.begin : part.end]) if shape else 0
        if part.order:
            num_rows = self._num_ordered_rows(part, num_rows)
        row_bytes = stored.num_bytes // max(shape[0], 1) if shape else 0
        if part.added is not None and self.stored.info(part.added).shape[1:] != shape[1:]:
            added = list(self.stored.info(part.added).shape)
            raise CheckpointError(
                f"{part.added} {added} cannot be added to {part.stored_name} {list(shape)}. Check that config.json and "
                "the weights belong to the same model."
            )
        return replace(stored, shape=(num_rows, *shape[1:]), begin=0, end=num_rows * row_bytes)

    def array(self, name: str) -> npt.NDArray[Any] | QuantizedWeight:
        part = self._slice_of(name)
        values = self.stored.array(part.stored_name)
        if part.is_whole:
            return values
        if isinstance(values, QuantizedWeight):
            if part.is_transposed or part.added is not None:
                raise _quantised_error(part.stored_name)
            return values.take_rows(_selected_rows(part, values.shape[0]))
        if part.is_transposed:
            values = values.T.reshape(_transposed(values.shape))
        rows: npt.NDArray[Any] = values[part.begin : part.end]
        if part.order is not None:
            rows = rows[list(part.order)]
        if part.added is None:
            return rows
        added = self.stored.array(part.added)
        if isinstance(added, QuantizedWeight):
            raise _quantised_error(part.added)
        return np.asarray(rows + added[0])

    def stored_rows(self, name: str) -> StoredRows | None:
        """Return which rows of a stored matrix a tensor is; None if something is added to them, or for an unknown
        name.
        """
        part = self._parts.get(name)
        if part is None or part.added is not None:
            return None
        if part.begin == 0 and part.end is None and part.order is None:
            return StoredRows(part.stored_name)
        shape = self.stored.info(part.stored_name).shape
        return StoredRows(part.stored_name, _selected_rows(part, shape[-1] if part.is_transposed else shape[0]))

    def stored_matrices(self, name: str) -> tuple[str, ...]:
        """Return the stored matrix that a tensor is a slice of; none if it is transposed, or something is added."""
        part = self._parts.get(name)
        return () if part is None or part.is_transposed or part.added is not None else (part.stored_name,)

    def _num_ordered_rows(self, part: TensorSlice, num_rows: int) -> int:
        """Return the number of rows of an ordered slice of a tensor with `num_rows` rows.

        If no slice takes the last row, all rows count, so that `match_names` reports a tensor with too many rows.
        """
        needed = self._num_needed_rows[_row_range(part)]
        if needed > num_rows:
            raise CheckpointError(
                f"{part.stored_name} has {num_rows} rows where the model needs {needed}. Check that config.json and "
                "the weights belong to the same model."
            )
        return len(part.order or ()) if needed == num_rows else num_rows

    def _slice_of(self, name: str) -> TensorSlice:
        if name not in self._parts:
            raise CheckpointError(f"The checkpoint has no tensor {name!r}.")
        return self._parts[name]


def _selected_rows(part: TensorSlice, num_rows: int) -> npt.NDArray[np.int64]:
    """Return the rows that a slice takes out of `num_rows`, in its order."""
    rows = np.arange(num_rows)[part.begin : part.end]
    return rows if part.order is None else rows[list(part.order)]


def _row_range(part: TensorSlice) -> tuple[str, int, int | None]:
    """The stored tensor and the range of rows, without regard to order."""
    return part.stored_name, part.begin, part.end


def _transposed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a transposed tensor, without inner dims of 1."""
    return tuple(dim for position, dim in enumerate(shape[::-1]) if dim != 1 or position in (0, len(shape) - 1))


def _quantised_error(name: str) -> CheckpointError:
    """The error for a quantised tensor that would have to be transposed or added to."""
    return CheckpointError(
        f"{name} is stored quantised, and this architecture rearranges dense tensors only. Take the model unquantised "
        "and pass a format as quantization."
    )

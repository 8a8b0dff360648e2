"""Dispatch of torch operators to the device: output shapes are computed immediately, contents when the work runs.

An operator runs on the CPU over the device's memory, which is accessible to it only. Only operators that the real
torch_npu registers exist; the real one would silently compute others on the host, and the stand-in refuses them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from aethermind.hal.tensor import contiguous_strides, num_spanned
from aethermind_sim.memory import Span, accessible
from torch_npu import memory
from torch_npu.streams import current_device, current_stream

__all__ = ["Made", "compute", "register"]

_AS_ON_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_VIEWS = ("as_strided", "view", "_reshape_alias", "unfold", "set_.source_Storage_storage_offset", "resize_")
"""View operators, whose torch kernels need no device."""
_NOW = ("_local_scalar_dense", "nonzero", "masked_select", "equal")
"""Operators whose results are on the host or whose shapes depend on values: they synchronise the stream."""

_LEFT_TO_TORCH = ("_to_copy",)
"""May copy to another device, as `empty_strided` and `copy_`."""


class Made(NamedTuple):
    """A tensor that an operator creates."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def like(cls, tensor: torch.Tensor) -> Made:
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)

    @classmethod
    def of(cls, shape: Sequence[int], dtype: torch.dtype) -> Made:
        return cls(tuple(shape), contiguous_strides(shape), dtype)


_made_before: dict[Any, list[Made]] = {}
_library = torch.library.Library("aten", "IMPL")


def register(names: Sequence[str], record: Callable[[str, Any, Any], None]) -> None:
    """Register the aten operators of these names that torch 2.13 has."""
    special: dict[str, Callable[..., Any]] = {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "copy_": _copy,
        **dict.fromkeys(_VIEWS, _view),
    }
    for name in names:
        packet, _, overload = name.partition(".")
        found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if found is None or _is_composite(found) or name in _LEFT_TO_TORCH or (_is_view(found) and name not in _VIEWS):
            continue
        how = special.get(name, _now if packet in _NOW else _later)
        _library.impl(name, _kernel(found, how, record), "PrivateUse1")


def _is_composite(op: Any) -> bool:
    """Whether torch decomposes the operator, which torch_npu may override."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"))


def _is_view(op: Any) -> bool:
    return any(spec.alias_info is not None and not spec.alias_info.is_write for spec in op._schema.returns)


def _kernel(op: Any, how: Callable[..., Any], record: Callable[[str, Any, Any], None]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        memory.free_dropped()
        record(op.name().removeprefix("aten::"), args, kwargs)
        return how(op, args, kwargs)

    return run


def _empty(_: Any, args: Any, kwargs: Any) -> torch.Tensor:
    (shape,) = args
    return _new(Made.of(shape, kwargs.get("dtype") or torch.get_default_dtype()), kwargs.get("device"))


def _empty_strided(_: Any, args: Any, kwargs: Any) -> torch.Tensor:
    shape, strides = args
    made = Made(tuple(shape), tuple(strides), kwargs.get("dtype") or torch.get_default_dtype())
    return _new(made, kwargs.get("device"))


def _view(op: Any, args: Any, kwargs: Any) -> Any:
    return op.redispatch(_AS_ON_CPU, *args, **kwargs)


def _copy(op: Any, args: Any, kwargs: Any) -> torch.Tensor:
    destination, source = args[:2]
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    device = destination.device if destination.device.type == "npu" else source.device
    stream = current_stream(device)
    stream.submit(_Work(op.name(), op, (destination, source), {}, [destination], []))
    host = [one for one in (destination, source) if one.device.type == "cpu"]
    if host and not (non_blocking and all(map(memory.is_pinned, host))):
        stream.synchronize()
    return destination


def _now(op: Any, args: Any, kwargs: Any) -> Any:
    device = _device_of(args)
    current_stream(device).synchronize()
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
    with accessible(_spans(tensors, [])):
        result = op(*tree_map(_on_cpu, args), **tree_map(_on_cpu, kwargs))
        if isinstance(result, torch.Tensor):
            result = result.clone()
    return result.to(device) if isinstance(result, torch.Tensor) else result


def _later(op: Any, args: Any, kwargs: Any) -> Any:
    by = _WITHOUT_CPU_KERNEL.get(op.name(), op)
    return compute(op, args, kwargs, by, lambda: [] if "out" in kwargs else _made_by(op, args, kwargs))


def _mm_widened(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, *, out: torch.Tensor) -> None:
    torch.mm(a.to(dtype), b.to(dtype), out=out)


_WITHOUT_CPU_KERNEL = {"aten::mm.dtype_out": _mm_widened}


def compute(
    op: Any, args: Any, kwargs: Mapping[str, Any], by: Callable[..., Any], made_by: Callable[[], list[Made]]
) -> Any:
    """Submit `by(*args, **kwargs)` over CPU views of the arguments; returns the outputs of `op`'s schema.

    `made_by()` returns the tensors that it creates, in addition to arguments.
    """
    device = _device_of((args, kwargs))
    written = _written(op, args, kwargs)
    aliased = {spec.alias_info.before_set.pop(): tensor for spec, tensor in written if spec.alias_info.before_set}
    made = [_new(one, device) for one in made_by()]
    name = op.name().rpartition("::")[2]
    current_stream(device).submit(_Work(name, by, args, kwargs, [tensor for _, tensor in written], made))
    rest = iter(made)
    results = []
    for spec in op._schema.returns:
        is_argument = spec.alias_info is not None and spec.alias_info.is_write
        results.append(aliased[next(iter(spec.alias_info.before_set))] if is_argument else next(rest))
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


class _Work:
    """A call over memory that the caller must keep alive; freed memory is a device error.

    It can be repeated with other values of non-tensor arguments.
    """

    def __init__(
        self,
        name: str,
        by: Callable[..., Any],
        args: Any,
        kwargs: Any,
        written: list[torch.Tensor],
        made: list[torch.Tensor],
    ) -> None:
        self.name = name
        given = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        self._spans = list(_spans(given, [*written, *made]))
        self._call = by, tree_map(_on_cpu, args), tree_map(_on_cpu, kwargs)
        self._made = list(map(_on_cpu, made))

    def __call__(self, **updatable_arguments: Any) -> None:
        by, args, kwargs = self._call
        with accessible(self._spans), torch.no_grad():
            results = by(*args, **{**kwargs, **updatable_arguments})
            if self._made:
                results = results if isinstance(results, (tuple, list)) else (results,)
                for output, result in zip(self._made, results, strict=True):
                    output.copy_(result)


def _made_by(op: Any, args: Any, kwargs: Any) -> list[Made]:
    """The outputs of an operator by torch's meta device, cached per form of call."""
    leaves, tree = tree_flatten((args, kwargs))
    key = (op, str(tree), tuple(Made.like(one) if isinstance(one, torch.Tensor) else _hashable(one) for one in leaves))
    if key not in _made_before:
        meta_args, meta_kwargs = tree_unflatten([_on_meta(one) for one in leaves], tree)
        results = op(*meta_args, **meta_kwargs)
        results = results if isinstance(results, (tuple, list)) else (results,)
        specs = op._schema.returns
        _made_before[key] = [
            Made.like(result)
            for spec, result in zip(specs, results, strict=True)
            if not (spec.alias_info is not None and spec.alias_info.is_write)
        ]
    return _made_before[key]


def _hashable(leaf: Any) -> Any:
    return (type(leaf), leaf) if isinstance(leaf, (int, float, bool, str)) else str(leaf)


def _on_meta(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
    return torch.device("meta") if isinstance(leaf, torch.device) else leaf


def _on_cpu(leaf: Any) -> Any:
    """The same memory as a CPU tensor, valid only while it is open."""
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    if not isinstance(leaf, torch.Tensor) or leaf.device.type == "cpu":
        return leaf
    if leaf.numel() == 0:
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype)
    spanned = num_spanned(leaf.shape, leaf.stride())
    held = (ctypes.c_byte * (spanned * leaf.itemsize)).from_address(leaf.data_ptr())
    return torch.frombuffer(held, dtype=leaf.dtype).as_strided(leaf.shape, leaf.stride())


def _spans(given: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> Iterator[Span]:
    for tensors, is_written in ((given, False), (written, True)):
        for tensor in tensors:
            region = memory.region_of(tensor)
            if region is not None and tensor.numel():
                nbytes = num_spanned(tensor.shape, tensor.stride()) * tensor.itemsize
                yield Span(region, tensor.data_ptr(), nbytes, is_written)


def _written(op: Any, args: Any, kwargs: Mapping[str, Any]) -> list[tuple[Any, torch.Tensor]]:
    """The tensors that an operator mutates, with their schema entries."""
    specs = op._schema.arguments
    named = {**{spec.name: value for spec, value in zip(specs, args, strict=False)}, **kwargs}
    return [
        (spec, named[spec.name])
        for spec in specs
        if spec.alias_info is not None and spec.alias_info.is_write and isinstance(named.get(spec.name), torch.Tensor)
    ]


def _device_of(values: Any) -> torch.device:
    """The common device of all tensors; scalars may be host tensors."""
    tensors = [one for one in tree_flatten(values)[0] if isinstance(one, torch.Tensor)]
    devices = {one.device for one in tensors if one.dim() or one.device.type == "npu"}
    if len(devices) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {sorted(map(str, devices))}!")
    return devices.pop() if devices else torch.device("npu", current_device())


def _new(made: Made, device: Any) -> torch.Tensor:
    index = torch.device(device or "npu").index
    index = current_device() if index is None else index
    return memory.empty(made.shape, made.strides, made.dtype, index, current_stream(index).give_back())

"""`torch.npu`: devices, memory and streams with the names and parameters of the real module."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch_npu import memory
from torch_npu.graphs import NPUGraph, graph, graph_pool_handle
from torch_npu.mstx import mstx
from torch_npu.streams import (
    Event,
    Stream,
    StreamContext,
    current_device,
    current_stream,
    default_stream,
    set_device,
    set_stream,
    stream,
    synchronize,
)

__all__ = [
    "Event",
    "NPUGraph",
    "Stream",
    "StreamContext",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device_count",
    "get_device_properties",
    "graph",
    "graph_pool_handle",
    "is_available",
    "is_initialized",
    "manual_seed_all",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "mstx",
    "set_device",
    "set_stream",
    "stream",
    "synchronize",
]


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def manual_seed_all(seed: int) -> None:
    """Does nothing: the device has no random numbers."""


def device_count() -> int:
    return memory.NUM_DEVICES


def can_device_access_peer(device_id: int, peer_device_id: int) -> bool:
    return device_id != peer_device_id


def get_device_properties(device_name: Any = None) -> SimpleNamespace:
    return SimpleNamespace(
        name="Ascend stand-in", total_memory=memory.total_bytes(), cube_core_num=24, vector_core_num=48
    )


def mem_get_info(device: Any = None) -> tuple[int, int]:
    total = memory.total_bytes()
    return total - memory_allocated(device), total


def memory_allocated(device: Any = None) -> int:
    return memory.allocated_bytes(current_device() if device is None else int(device))


def memory_reserved(device: Any = None) -> int:
    return memory_allocated(device)

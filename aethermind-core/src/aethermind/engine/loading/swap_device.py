"""The device whose memory blocks are swapped to, in place of host memory."""

from __future__ import annotations

from aethermind.errors import InvalidArgumentError
from aethermind.hal.device import DeviceId
from aethermind.runtime import OpenDevice

__all__ = ["find_swap_device"]


def find_swap_device(opened: OpenDevice, name: str) -> DeviceId:
    """Return the device of this name; InvalidArgumentError unless it is a peer of the opened one.

    Without peer access a copy would go through host memory, so swapping to host memory would be faster.
    """
    device, backend = DeviceId.parse(name), opened.backend
    if backend.capabilities.is_host_accessible:
        problem = f"{opened.device} computes in host memory"
    elif device.type != backend.name:
        problem = f"{opened.device} copies to devices of {backend.name} only"
    elif device.index >= (count := backend.devices.count()):
        problem = f"{backend.name} has {count} device(s), counted from 0"
    elif device == opened.device:
        problem = "that is the device that computes"
    elif not backend.can_access_peer(opened.device.index, device.index):
        problem = f"{opened.device} has no peer access to it, so copies would go through host memory"
    else:
        return device
    raise InvalidArgumentError(
        f"Blocks cannot be swapped to {device}: {problem}. Leave swap_device out to swap to host memory.",
        param="swap_device",
    )

"""The hardware abstraction layer (HAL): the interfaces that backends implement, and two backends in host memory."""

from aethermind.hal.backend import Backend, Capabilities, MeasuredLimits
from aethermind.hal.communicator import Communicator
from aethermind.hal.device import CountedDevices, DeviceId, DeviceManager, DeviceProperties, DeviceUsage, Probe
from aethermind.hal.dtype import DType
from aethermind.hal.memory import Allocator, Buffer, MemoryCounter, MemoryKind, MemoryStats
from aethermind.hal.registry import DeviceRegistry
from aethermind.hal.stream import Event, EventManager, Stream, StreamManager
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer, TransferStats, check_copy, check_fill

__all__ = [
    "Allocator",
    "Backend",
    "Buffer",
    "Capabilities",
    "Communicator",
    "CountedDevices",
    "DType",
    "DataTransfer",
    "DeviceId",
    "DeviceManager",
    "DeviceProperties",
    "DeviceRegistry",
    "DeviceUsage",
    "Event",
    "EventManager",
    "MeasuredLimits",
    "MemoryCounter",
    "MemoryKind",
    "MemoryStats",
    "Probe",
    "Stream",
    "StreamManager",
    "Tensor",
    "TransferStats",
    "check_copy",
    "check_fill",
]

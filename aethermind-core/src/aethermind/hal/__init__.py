"""What a device is: the contract a backend fulfils, and two backends in plain host memory."""

from aethermind.hal.allocator import Allocator, MemoryCounter, MemoryStats
from aethermind.hal.backend import Backend, Capabilities, MeasuredLimits
from aethermind.hal.buffer import Buffer, MemoryKind
from aethermind.hal.communicator import Communicator
from aethermind.hal.device import CountedDevices, DeviceId, DeviceManager, DeviceProperties, Probe
from aethermind.hal.dtype import DType
from aethermind.hal.event import Event, EventManager
from aethermind.hal.registry import DeviceRegistry
from aethermind.hal.stream import Stream, StreamManager
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

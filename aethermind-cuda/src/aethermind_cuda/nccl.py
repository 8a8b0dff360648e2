"""NCCL collectives between the ranks of a model (one process and GPU each), called through the C interface.

The library is the one of the `nvidia-nccl-cu13` wheel, which torch for CUDA also installs. Constants are those of
nccl.h; see https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html. Its kernels may be captured in a graph.
"""

from __future__ import annotations

import ctypes
import socket
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from aethermind.errors import DeviceError, InvalidArgumentError
from aethermind.graph.tensor_parallel import Share
from aethermind.hal.dtype import DType
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind_cuda.launch import DeviceArray, Enqueue
from aethermind_cuda.streams import CudaStream

__all__ = ["NcclCommunicator", "find_nccl"]

_BYTES, _SUM = 0, 0
"""`ncclInt8`, the type of transfers without reduction, and `ncclSum`."""
_DATA_TYPES = {DType.FLOAT16: 6, DType.FLOAT32: 7, DType.BFLOAT16: 9}
_ID_BYTES = 128
_CONNECT_TIMEOUT_S = 300.0
"""How long a rank waits for the others to load their weights."""
_RETRY_S = 0.05


class _UniqueId(ctypes.Structure):
    """`ncclUniqueId`, which C passes by value."""

    _fields_ = (("internal", ctypes.c_byte * _ID_BYTES),)


@cache
def find_nccl() -> Any | None:
    """Load NCCL; None where it is not installed."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        library = ctypes.CDLL(load_nvidia_dynamic_lib("nccl").abs_path)
    except (DynamicLibNotFoundError, OSError):
        return None
    library.ncclGetErrorString.restype = ctypes.c_char_p
    return library


class NcclCommunicator:
    """The ranks of one model, on the device whose context is current; implements `hal.communicator.Communicator`.

    The `bind_…` methods prepare a collective, like `launch.Work.bind`; it can be captured in a graph.
    """

    def __init__(
        self, library: Any, rank: int, size: int, address: str | None, scratch: Tensor, stream: Stream
    ) -> None:
        """Connect to the other ranks at `address`, `HOST:PORT`, where rank 0 listens; returns when all are connected.

        A barrier reduces `scratch`, whose contents are unused, on `stream`.
        """
        if not 0 <= rank < size:
            raise InvalidArgumentError(f"Rank {rank} of {size} does not exist: ranks are counted from 0.")
        self._library, self._scratch, self._stream = library, scratch, stream
        self._share = Share(rank, size)
        self._handle = ctypes.c_void_p()
        unique = _UniqueId()
        if rank == 0:
            self._call("ncclGetUniqueId", ctypes.byref(unique))
        if size > 1:
            if address is None:
                raise InvalidArgumentError(
                    "Ranks of CUDA devices connect at an address, HOST:PORT, and none was given."
                )
            host, _, port = address.rpartition(":")
            endpoint = host, int(port)
            unique_id = bytes(unique.internal)
            shared_id = _serve_unique_id(unique_id, endpoint, size - 1) if rank == 0 else _fetch_unique_id(endpoint)
            ctypes.memmove(ctypes.byref(unique), shared_id, _ID_BYTES)
        self._call("ncclCommInitRank", ctypes.byref(self._handle), size, unique, rank)

    def close(self) -> None:
        """Abort the communicator: pending collectives end, so that a rank whose peers are gone can end, too."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            self._call("ncclCommAbort", handle)

    @property
    def rank(self) -> int:
        return self._share.rank

    @property
    def size(self) -> int:
        return self._share.size

    @property
    def share(self) -> Share:
        """This rank and the number of ranks."""
        return self._share

    def all_reduce(self, tensor: Tensor, stream: Stream) -> None:
        """Sum `tensor` over all ranks, in place."""
        array = _array(tensor)
        self.bind_all_reduce(array, array)(_stream_handle(stream))

    def all_gather(self, output: Tensor, part: Tensor, stream: Stream) -> None:
        """Concatenate every rank's `part` along the first axis into `output`."""
        self.bind_all_gather(_array(output), _array(part))(_stream_handle(stream))

    def broadcast(self, tensor: Tensor, root: int, stream: Stream) -> None:
        """Copy `tensor` of rank `root` to every rank."""
        pointer = ctypes.c_void_p(tensor.address)
        self._bind("ncclBroadcast", pointer, pointer, tensor.nbytes, _BYTES, root)(_stream_handle(stream))

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.all_reduce(self._scratch, self._stream)
        self._stream.synchronize()

    def bind_all_reduce(self, out: DeviceArray, x: DeviceArray) -> Enqueue:
        """out = the sum of every rank's x, which may be `out`."""
        if not x.size:
            return _enqueue_nothing
        pointers = ctypes.c_void_p(x.address), ctypes.c_void_p(out.address)
        return self._bind("ncclAllReduce", *pointers, x.size, _DATA_TYPES[x.dtype], _SUM)

    def bind_all_gather(self, out: DeviceArray, part: DeviceArray) -> Enqueue:
        """Concatenate the parts of all ranks along the first axis; lengths are those of `Share.bounds`."""
        if not out.size:
            return _enqueue_nothing
        length, row_bytes = out.shape[0], out.nbytes // out.shape[0]
        source = ctypes.c_void_p(part.address)
        if length % self.size == 0:
            return self._bind("ncclAllGather", source, ctypes.c_void_p(out.address), part.nbytes, _BYTES)
        # Parts of unequal lengths: each rank broadcasts its own, grouped into one operation.
        broadcasts = []
        for rank in range(self.size):
            begin, end = self._share.bounds(length, rank)
            pointer = ctypes.c_void_p(out.address + begin * row_bytes)
            send_buffer = source if rank == self.rank else pointer
            if end > begin:
                broadcasts.append(
                    self._bind("ncclBroadcast", send_buffer, pointer, (end - begin) * row_bytes, _BYTES, rank)
                )
        call = self._call

        def enqueue(stream: int) -> None:
            call("ncclGroupStart")
            try:
                for broadcast in broadcasts:
                    broadcast(stream)
            finally:
                call("ncclGroupEnd")

        return enqueue

    def _bind(self, name: str, source: Any, target: Any, count: int, *rest: int) -> Enqueue:
        call, handle = self._call, self._handle

        def enqueue(stream: int) -> None:
            call(name, source, target, ctypes.c_size_t(count), *rest, handle, ctypes.c_void_p(stream))

        return enqueue

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            message = self._library.ncclGetErrorString(status).decode(errors="replace")
            raise DeviceError(f"{name} failed with status {status} ({message}). Set NCCL_DEBUG=INFO for details.")


def _serve_unique_id(unique: bytes, endpoint: tuple[str, int], num_others: int) -> bytes:
    """Send the communicator id to every other rank."""
    with socket.create_server(endpoint, backlog=num_others) as server:
        server.settimeout(_CONNECT_TIMEOUT_S)
        for _ in range(num_others):
            try:
                other, _address = server.accept()
            except TimeoutError:
                raise DeviceError(
                    f"Not all ranks connected to {endpoint[0]}:{endpoint[1]} in {_CONNECT_TIMEOUT_S:.0f} s."
                ) from None
            with other:
                other.sendall(unique)
    return unique


def _fetch_unique_id(endpoint: tuple[str, int], clock: Callable[[], float] = time.monotonic) -> bytes:
    """Fetch the id from rank 0, retrying until it listens."""
    deadline = clock() + _CONNECT_TIMEOUT_S
    while True:
        try:
            with socket.create_connection(endpoint, timeout=_CONNECT_TIMEOUT_S) as sock:
                found = sock.recv(_ID_BYTES, socket.MSG_WAITALL)
                if len(found) == _ID_BYTES:
                    return found
        except OSError:
            pass
        if clock() > deadline:
            raise DeviceError(
                f"Rank 0 could not be reached at {endpoint[0]}:{endpoint[1]} in {_CONNECT_TIMEOUT_S:.0f} s."
            )
        time.sleep(_RETRY_S)


def _array(tensor: Tensor) -> DeviceArray:
    return DeviceArray(tensor.address, tensor.dtype, tensor.shape)


def _stream_handle(stream: Stream) -> int:
    assert isinstance(stream, CudaStream), "the stream is of another backend"
    return stream.handle


def _enqueue_nothing(_: int) -> None:
    """The `Enqueue` of a collective without elements, which launches nothing."""

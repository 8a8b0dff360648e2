"""A disk cache of packed weights, in kernels' layouts: later processes map them instead of packing again.

A folder has one safetensors file for each set of constants, which several processes may share. A tensor of a file holds
the bytes of a constant, padded to whole cache lines. The header is padded to a page, so that every constant begins at a
cache line wherever the file is mapped. Files are written in the background, while the model is idle.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import aethermind
from aethermind import checkpoint, env, ops
from aethermind.atomic_file import PARTIAL
from aethermind.cache_folder import CacheFolder, digest_of, file_fingerprint
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.errors import CheckpointError
from aethermind.hal.mapped import maps_huge_pages, prefetch_mapped_pages
from aethermind.hal.memory import ALIGNMENT, align_up
from aethermind.log import get_logger

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.graph.constants import BusyTracker, PackedConstant
    from aethermind.hal.tensor import Tensor

__all__ = ["IdleScheduler", "WeightCache", "WeightFolder"]

_SUFFIX = ".safetensors"
_PAGE_BYTES = 4096
_PIECE_BYTES = 2 << 20
"""Bytes of one write, at multiples of this size, so that Linux caches the file in huge pages. Larger writes lead to
larger folios, which Linux maps by small pages.
"""


class WeightFolder:
    """Up to `max_bytes` of files; the least recently used are evicted first.

    The mapping of an evicted file remains valid.
    """

    needs_huge_pages = True
    """Whether files have to be mapped by huge pages, because with small pages every decode step is slower."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._files = CacheFolder(path, _SUFFIX, max_bytes=max_bytes)

    def has(self, key: str) -> bool:
        """Whether there is a file for this key."""
        return self._files.has(key)

    def find(self, key: str, sizes: Mapping[str, int]) -> dict[str, Bytes]:
        """Map the constants of a key; `sizes` are their bytes. Empty if there is no file, or if it is mapped by small
        pages.

        CheckpointError for a damaged file, which is deleted.
        """
        path = self._files.path_of(key)
        try:
            is_large = path.stat().st_size > 2 * _PIECE_BYTES
            if self.needs_huge_pages and is_large and not maps_huge_pages(path):
                return {}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        try:
            found = _read(path, key, sizes)
        except CheckpointError:
            if not path.exists():  # another process evicted it meanwhile
                return {}
            self._files.discard(key)
            raise
        self._files.touch(key)
        return found

    def write(
        self,
        key: str,
        constants: Mapping[str, Bytes],
        is_cancelled: Callable[[], bool] = lambda: False,
        *,
        model: str = "",
    ) -> bool:
        """Write the file of a key; `model` is the model's path, for its metadata.

        Returns False if `is_cancelled` returned true before the end, if the file would exceed the folder's limit, or if
        it would be mapped by small pages.

        OSError if the file cannot be written. An unfinished file is deleted in every case.
        """
        nbytes = sum(align_up(constant.nbytes, ALIGNMENT) for constant in constants.values())
        if nbytes > self.max_bytes:
            return False
        self._files.create()
        if self.needs_huge_pages and not self._has_huge_pages():
            return False
        self._files.evict(nbytes)
        if shutil.disk_usage(self.path).free < 2 * nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._files.write(key, _pieces(_contents(key, constants, model)), is_cancelled)

    def _has_huge_pages(self) -> bool:
        """Whether files of this folder are mapped by huge pages, by a test with a small file."""
        with tempfile.NamedTemporaryFile(dir=self.path, suffix=PARTIAL, buffering=0) as file:
            for _ in range(4):
                file.write(bytes(_PIECE_BYTES))
            return maps_huge_pages(Path(file.name))


def _read(path: Path, key: str, sizes: Mapping[str, int]) -> dict[str, Bytes]:
    file = SafetensorsFile(path)
    found = {}
    for name, nbytes in sizes.items():
        info = file.info(name)
        array = file.array(name)[:nbytes]
        if info.dtype_name != "U8" or array.shape != (nbytes,) or array.ctypes.data % ALIGNMENT:
            raise CheckpointError(f"{path} has {info.num_bytes} bytes of {name}, and {nbytes} are wanted.")
        found[name] = array
    if file.metadata.get("key") != key:
        raise CheckpointError(f"{path} holds other weights than its name indicates.")
    return found


def _contents(key: str, constants: Mapping[str, Bytes], model: str) -> Iterator[Any]:
    """Yield the parts of a file in order."""
    header: dict[str, Any] = {"__metadata__": {"key": key, **({"model": model} if model else {})}}
    end = 0
    for name, constant in constants.items():
        begin, end = end, end + align_up(constant.nbytes, ALIGNMENT)
        header[name] = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text = text.ljust(align_up(8 + len(text), _PAGE_BYTES) - 8)
    yield len(text).to_bytes(8, "little") + text
    for constant in constants.values():
        yield constant.data
        yield bytes(align_up(constant.nbytes, ALIGNMENT) - constant.nbytes)


def _pieces(parts: Iterator[Any]) -> Iterator[memoryview]:
    """Split the parts into pieces of one size, except for the last; each overwrites the memory of the one before."""
    piece = memoryview(bytearray(_PIECE_BYTES))
    filled = 0
    for part in parts:
        rest = memoryview(part)
        while rest:
            taken = rest[: _PIECE_BYTES - filled]
            piece[filled : filled + len(taken)] = taken
            filled, rest = filled + len(taken), rest[len(taken) :]
            if filled == _PIECE_BYTES:
                yield piece
                filled = 0
    yield piece[:filled]


logger = get_logger(__name__)

_LOWEST_PRIORITY = 19
"""The nice value of the thread that writes."""
_LARGE_BYTES = 1 << 30
"""From this size on a new file is announced in the log, because it takes much disk space."""


class WeightCache:
    """The cached packed weights of one model; implements `graph.constants.PackedWeightCache`.

    Only weights whose pack has a `build` are cached: other processes pack them to the same bytes.
    """

    min_bytes = 64 << 20
    """Weights of fewer bytes are not cached, because packing them is as fast."""

    def __init__(self, compiled: CompiledModel, folder: WeightFolder) -> None:
        """Record the state of the model's files before they are opened, so that a later change of a file is noticed.

        Files that are still being downloaded are described when they are kept. CheckpointError if the files are not a
        model's.
        """
        self._compiled = compiled
        self._folder = folder
        self._files: list[Any] | None = None
        with suppress(OSError):  # opening a file that is missing raises an error with a better message
            self._files = describe_files(compiled)
        self._writing: list[tuple[threading.Thread, IdleScheduler]] = []

    @classmethod
    def of(cls, compiled: CompiledModel) -> WeightCache | None:
        """Create the cache of a model in the user's cache folder.

        None if the configuration turns it off, for dummy weights, and for devices with memory of their own.
        """
        config = compiled.config
        is_in_place = compiled.open_device.backend.capabilities.is_host_accessible
        if not config.weight_cache or config.load_format == "dummy" or not is_in_place:
            return None
        return cls(compiled, WeightFolder(env.cache_directory() / "weights", int(config.weight_cache * 2**30)))

    def find(self, wanted: Mapping[str, PackedConstant]) -> Mapping[str, Any]:
        """Map the packed weights and prefetch their pages (see `PackedWeightCache`). A damaged file is a warning."""
        cacheable = self._cacheable(wanted)
        if not cacheable or self._files is None:
            return {}
        key = cache_key(self._compiled, self._files, cacheable)
        try:
            found = self._folder.find(key, {key: entry.nbytes for key, entry in cacheable.items()})
        except CheckpointError as error:
            logger.warning("The cached packed weights are damaged and are packed again: %s", error)
            return {}
        if found:
            prefetch_mapped_pages(next(iter(found.values())))
        return found

    def keep(self, wanted: Mapping[str, PackedConstant], packed: Mapping[str, Tensor], activity: BusyTracker) -> None:
        """Write the file in a thread of the lowest priority (see `PackedWeightCache`).

        Pieces of 2 MiB are written while the model is idle, and at intervals if it is never idle (see `IdleScheduler`).
        The rest is written when the model is closed or dropped, or at the end of the program, unless that is
        interrupted.
        """
        cacheable = self._cacheable(wanted)
        if not cacheable:
            return
        scheduler = IdleScheduler(activity)
        compiled, folder = self._compiled, self._folder
        described = self._files

        def write() -> None:
            with suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
            try:
                files = describe_files(compiled) if described is None else described
                is_same = describe_files(compiled) == files
                key = cache_key(compiled, files, cacheable)
                if is_same and not scheduler.wait_until_idle() and not folder.has(key):
                    arrays = {name: packed[name].numpy() for name in cacheable}
                    model = str(compiled.source.path)
                    if folder.write(key, arrays, scheduler.wait_until_idle, model=model):
                        _announce(folder, model, sum(array.nbytes for array in arrays.values()))
            except (OSError, CheckpointError) as error:
                logger.info("packed weights are not cached: %s", error)

        thread = threading.Thread(target=write, name="aethermind-keep-weights", daemon=True)
        thread.start()
        atexit.register(_finish_quietly, thread, scheduler)
        self._writing.append((thread, scheduler))
        weakref.finalize(
            self, scheduler.finish_now
        ).atexit = False  # the thread holds the weights of a model that was dropped

    def finish(self) -> None:
        """Write the rest now (see `PackedWeightCache`); KeyboardInterrupt cancels it."""
        while self._writing:
            _finish(*self._writing.pop())

    def _cacheable(self, wanted: Mapping[str, PackedConstant]) -> dict[str, PackedConstant]:
        """Return the constants that another process would pack to the same bytes; none if they have few bytes."""
        cacheable = {
            key: entry
            for key, entry in wanted.items()
            if entry.pack.build is not None and entry.constant.parameter not in self._compiled.computed
        }
        return cacheable if sum(entry.nbytes for entry in cacheable.values()) >= self.min_bytes else {}


def _finish(thread: threading.Thread, scheduler: IdleScheduler) -> None:
    scheduler.finish_now()
    try:
        thread.join()
    except KeyboardInterrupt:
        scheduler.cancel()
        thread.join()
        raise


def _finish_quietly(thread: threading.Thread, scheduler: IdleScheduler) -> None:
    with suppress(KeyboardInterrupt):
        _finish(thread, scheduler)


def _announce(folder: WeightFolder, model: str, nbytes: int) -> None:
    """Warn that a file takes much disk space; later starts find the file and do not repeat the warning."""
    if nbytes >= _LARGE_BYTES:
        logger.warning(
            "The packed weights of %s are kept for faster starts: %.1f GB in %s. `aethermind cache list` shows "
            "them; weight_cache=0 (--weight-cache 0) keeps none.",
            model,
            nbytes / 1e9,
            folder.path,
        )


def describe_files(compiled: CompiledModel) -> list[Any]:
    """Describe a model's files, and the code that reads them, by name, inode, size, and times of modification and
    change.

    To read the files would take longer than packing. A copy of a file counts as another file. OSError if a file is
    missing.
    """
    source = compiled.source
    code = [*_files_of(type(compiled.model)), *_files_in(checkpoint), *_files_in(ops)]
    return [file_fingerprint(path) for path in (*source.weights().paths, *sorted(source.path.glob("*.json")), *code)]


def cache_key(compiled: CompiledModel, files: list[Any], wanted: Mapping[str, PackedConstant]) -> str:
    """Hash everything that packed weights depend on: the model's files and the layouts; 32 hexadecimal digits."""
    described = {
        "version": aethermind.__version__,
        "files": files,
        "rank": None if compiled.parallel is None else repr(compiled.parallel.share),
        "constants": {
            key: [
                *entry.constant[:2],
                repr(entry.constant.weight_format),
                str(entry.type),
                entry.nbytes,
                entry.pack.build,
            ]
            for key, entry in sorted(wanted.items())
        },
    }
    return digest_of(described)


def _files_in(package: ModuleType) -> list[Path]:
    """Return the source files of a package that reads or converts tensors."""
    return sorted(Path(package.__path__[0]).glob("*.py"))


def _files_of(model: type) -> list[Path]:
    """Return the source files of a model, whose code maps the checkpoint's tensors to its parameters."""
    modules = dict.fromkeys(sys.modules.get(base.__module__) for base in model.__mro__)
    return [Path(file) for module in modules if (file := getattr(module, "__file__", None)) is not None]


class IdleScheduler:
    """Schedules pieces of background work of one thread while the model is idle.

    A piece may run once the model has been idle for `IDLE_S`, and after `MAX_WAIT_S` at the latest, so that the work
    ends even if the model is always busy. After `finish_now` or `cancel`, which any thread may call, pieces do not
    wait.
    """

    IDLE_S = 0.1
    """Seconds; longer than the time between two steps of a request, in which the host works."""

    MAX_WAIT_S = 0.5

    def __init__(
        self,
        activity: BusyTracker,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self._activity = activity
        self._clock = clock
        self._wait = wait
        self._last = clock()
        self._may_finish = threading.Event()
        self._is_cancelled = False

    def wait_until_idle(self) -> bool:
        """Wait until the next piece may run; True if the work was cancelled instead."""
        while not self._may_finish.is_set():
            now = self._clock()
            idle_left_s = self.IDLE_S - self._activity.idle_s
            left_s = min(idle_left_s, self._last + self.MAX_WAIT_S - now)
            if left_s <= 0:
                break
            self._wait(self._may_finish, left_s)
        self._last = self._clock()
        return self._is_cancelled

    def finish_now(self) -> None:
        """Let the rest of the work run without waiting for idle time, as at the end of the program."""
        self._may_finish.set()

    def cancel(self) -> None:
        """Cancel the rest of the work."""
        self._is_cancelled = True
        self._may_finish.set()

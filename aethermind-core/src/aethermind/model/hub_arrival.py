"""A model of the Hugging Face Hub that is compiled, and whose weights are packed, while weights are downloaded.

Configuration, tokenizer and the headers of the files of weights, in safetensors or GGUF, are fetched first. A thread
then downloads the files of weights in order, and a tensor waits only for its own file. So a model in one file is packed
after its download; its plan, its tokenizer and the memory of its weights are ready by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import TYPE_CHECKING, TypeVar

from aethermind.checkpoint.arriving import ArrivingFile, ArrivingGguf
from aethermind.checkpoint.gguf_tensors import GgufParts
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.checkpoint.sharded_index import Checkpoint
from aethermind.checkpoint.source import TensorFile
from aethermind.errors import CheckpointError
from aethermind.model.hub import Download, begin_download, explained
from aethermind.model.hub_files import INDEX, HubName
from aethermind.model.hub_headers import fetch_header

if TYPE_CHECKING:
    from aethermind.checkpoint.gguf import GgufFile

__all__ = ["Arrival", "begin_arrival", "is_any_arriving"]

_Opened = TypeVar("_Opened")

_lock = Lock()
_running: dict[HubName, Future[Arrival | Path]] = {}
"""Downloads that have begun, so that a model that is opened twice is downloaded once. Guarded by `_lock`."""


class Arrival:
    """A download whose texts and headers are there, and whose weights arrive. Thread-safe."""

    def __init__(self, download: Download) -> None:
        """Fetch the headers and start the thread. Errors are the client's."""
        self._download = download
        self._directory = TemporaryDirectory(prefix="aethermind-headers-", ignore_cleanup_errors=True)
        self._headers = Path(self._directory.name)
        self._files: dict[str, Future[None]] = {path: Future() for path in download.files.chosen.weights}
        self._fetch_headers()
        Thread(target=self._fetch_weights, name="aethermind-download", daemon=True).start()

    @property
    def path(self) -> Path:
        """The directory that the model will be in, whose texts are there, or its first .gguf file."""
        return self._download.path

    def checkpoint(self) -> Checkpoint:
        """Open the tensors in safetensors (`Checkpoint.open`).

        Values wait for their file, and raise what its download failed with.
        """
        return self._open(
            lambda: Checkpoint.open(self._headers).with_files(self._arriving), lambda: Checkpoint.open(self.path)
        )

    def gguf(self) -> GgufParts:
        """Open the .gguf files (`GgufParts`); values wait as those of `checkpoint`."""
        return self._open(lambda: GgufParts(self.path, self._arriving_gguf()), lambda: GgufParts(self.path))

    def _open(self, open_arriving: Callable[[], _Opened], open_whole: Callable[[], _Opened]) -> _Opened:
        if not all(future.done() and future.exception() is None for future in self._files.values()):
            try:
                return open_arriving()
            except CheckpointError:  # which names the headers' own files: the downloaded ones say it again
                for future in self._files.values():
                    future.result()
        return open_whole()

    def _arriving_gguf(self) -> dict[Path, GgufFile]:
        paths = {path: self._download.snapshot / path for path in self._files}
        return {
            whole: ArrivingGguf(whole, self._headers / path, self._files[path].result) for path, whole in paths.items()
        }

    def _arriving(self, header: TensorFile) -> TensorFile:
        assert isinstance(header, SafetensorsFile)
        name = header.path.name
        return ArrivingFile(self.path / name, header, self._files[name].result)

    def _fetch_headers(self) -> None:
        commit, sizes, chosen = self._download.files
        for path in (INDEX, *chosen.weights):
            header = self._headers / path
            header.parent.mkdir(parents=True, exist_ok=True)
            if self._download.has(path):
                header.symlink_to(self._download.snapshot / path)
            elif path in chosen.weights:
                fetch_header(self._download.name, path, commit, sizes.get(path, 0), header)

    def _fetch_weights(self) -> None:
        *early, last = self._files
        try:
            with explained(self._download.name):
                for path in early:
                    self._download.fetch(path)
                    self._files[path].set_result(None)
                self._download.fetch(last)
                self._download.finish()
        except BaseException as error:
            _forget(self._download.name)
            for future in self._files.values():
                if not future.done():
                    future.set_exception(error)
        else:
            _forget(self._download.name)
            self._files[last].set_result(None)


def is_any_arriving() -> bool:
    """Whether a model is being downloaded whose weights are waited for where they are read."""
    return bool(_running)


def begin_arrival(name: HubName) -> Arrival | Path:
    """Begin to download a model that is not in the cache, and return when all but its weights is there.

    A path if it is there whole: weights in PyTorch's format are waited for. ConfigError says in one
    sentence why a model cannot be had. Calls for one model wait for the first of them, and raise what it raises.
    """
    with _lock:
        running = _running.get(name)
        if running is None:
            begun = _running[name] = Future()
    if running is not None:
        return running.result()
    try:
        with explained(name):
            place = _begin(name)
    except BaseException as error:
        _forget(name)
        begun.set_exception(error)
        raise
    if isinstance(place, Path):
        _forget(name)
    begun.set_result(place)
    return place


def _begin(name: HubName) -> Arrival | Path:
    download = begin_download(name)
    if isinstance(download, Path):
        return download
    download.fetch_texts()
    return Arrival(download) if _can_arrive(download.files.chosen.weights) else download.fetch_weights()


def _forget(name: HubName) -> None:
    """From now on the model is found in the cache, or its download is tried again."""
    with _lock:
        _running.pop(name, None)


def _can_arrive(weights: Sequence[str]) -> bool:
    are_safetensors = all(path.endswith(".safetensors") and "/" not in path for path in weights)
    return bool(weights) and (are_safetensors or all(path.endswith(".gguf") for path in weights))

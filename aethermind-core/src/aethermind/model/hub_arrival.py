"""A model of the Hugging Face Hub that is compiled, and whose weights are packed, while weights are downloaded.

Configuration, tokenizer and the headers of the files of weights are fetched first. A thread then downloads the files of
weights in order, and a tensor waits only for its own file. So a model in one file is packed after its download; its
plan, its tokenizer and the memory of its weights are ready by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread

from aethermind.checkpoint.arriving import ArrivingFile
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.checkpoint.sharded_index import Checkpoint
from aethermind.checkpoint.source import TensorFile
from aethermind.errors import CheckpointError
from aethermind.model.hub import Download, begin_download, explained
from aethermind.model.hub_files import INDEX, HubName
from aethermind.model.hub_headers import fetch_safetensors_header

__all__ = ["Arrival", "begin_arrival", "is_any_arriving"]

_SUFFIX = ".safetensors"

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
        """The directory that the model will be in; its texts are there."""
        return self._download.snapshot

    def checkpoint(self) -> Checkpoint:
        """Open the tensors (`Checkpoint.open`); values wait for their file, and raise what its download failed with."""
        if not all(future.done() and future.exception() is None for future in self._files.values()):
            try:
                return Checkpoint.open(self._headers).with_files(self._arriving)
            except CheckpointError:  # which names the headers' own files: the downloaded ones say it again
                for future in self._files.values():
                    future.result()
        return Checkpoint.open(self.path)

    def _arriving(self, header: TensorFile) -> TensorFile:
        assert isinstance(header, SafetensorsFile)
        name = header.path.name
        return ArrivingFile(self.path / name, header, self._files[name].result)

    def _fetch_headers(self) -> None:
        commit, sizes, chosen = self._download.files
        for path in (INDEX, *chosen.weights):
            if self._download.has(path):
                (self._headers / path).symlink_to(self.path / path)
            elif path in chosen.weights:
                fetch_safetensors_header(self._download.name, path, commit, sizes.get(path, 0), self._headers / path)

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

    A path if it is there whole: weights in other formats than safetensors are waited for. ConfigError says in one
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
    return bool(weights) and all(path.endswith(_SUFFIX) and "/" not in path for path in weights)

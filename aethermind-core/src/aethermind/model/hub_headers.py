"""Headers of the weight files of a model on the Hugging Face Hub, from which its memory is estimated.

The weights themselves are not downloaded. Each weight file becomes a sparse file of the right size that contains only
the header, so it is opened like a downloaded one. Headers are read by HTTP range requests: the length of that of a
.safetensors file is known (https://huggingface.co/docs/safetensors), and a .gguf file is read until its header is
complete. Small tensors that describe quantised matrices, such as their shapes, are read as well.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from aethermind.checkpoint.gguf import GgufFile, TruncatedHeaderError
from aethermind.checkpoint.gguf_tensors import CONFIGURATION_TENSORS
from aethermind.checkpoint.safetensors import MAX_HEADER_BYTES, SafetensorsFile
from aethermind.errors import CheckpointError, ConfigError
from aethermind.model.hub import choose_files, explained
from aethermind.model.hub_files import HubName

__all__ = ["fetch_header", "fetch_headers"]

_FIRST_BYTES = 1 << 18
"""The size of the first request for a weight file: more than most headers of .safetensors files."""
_MAX_TEXT_BYTES = 1 << 20
"""Larger text files are not read: they are tokenizers, of which only the size is needed."""
_MAX_PARALLEL = 8

_DESCRIPTIONS = (
    *(".weight_shape", ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"),
    *(".shape", ".axis", ".group_size", ".nbits", ".packing"),
)
"""Suffixes of the names of tensors that describe a quantised matrix (compressed-tensors, bitsandbytes, HQQ)."""
_MAX_DESCRIPTION_BYTES = 1 << 12
_MAX_GAP_BYTES = 1 << 16
"""Two descriptions with at most this many bytes between them are read by one request."""

ReadRange = Callable[[int, int], bytes]
"""Reads the bytes `begin` to `end`, exclusive, of a file on the Hub."""


def fetch_headers(name: HubName, directory: Path) -> Path:
    """Write the headers of a model into an empty directory, and return the path at which the model is opened.

    ConfigError says in one sentence why they cannot be read.
    """
    with explained(name):
        commit, sizes, chosen = choose_files(name)
        if any(path.endswith(".bin") for path in chosen.weights):
            raise ConfigError(
                f"{name} has weights in PyTorch's format, which says nothing of its tensors in advance: run "
                f"`aethermind pull {name}` first."
            )

        def fetch(path: str) -> None:
            target, size = directory / path, sizes.get(path, 0)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path in chosen.weights:
                fetch_header(name, path, commit, size, target)
            elif size <= _MAX_TEXT_BYTES:
                target.write_bytes(_read_range(_url(name, path, commit), 0, size) if size else b"")
            else:
                _write_sparse(target, b"", size)

        with ThreadPoolExecutor(_MAX_PARALLEL) as pool:
            list(pool.map(fetch, chosen.files))
    return directory if chosen.gguf is None else directory / chosen.gguf


def fetch_header(name: HubName, path: str, commit: str, size: int, target: Path) -> None:
    """Write the header of a .safetensors or .gguf file of `size` bytes. Errors are the client's (`explained`).

    A file that is neither, or broken, is written as far as it was read; opening it raises the error.
    """
    write = _write_gguf_header if path.endswith(".gguf") else _write_safetensors_header
    write(target, size, partial(_read_range, _url(name, path, commit)))


def _write_safetensors_header(target: Path, size: int, read: ReadRange) -> None:
    """Write the header, and the small tensors that describe quantised matrices."""
    contents = read(0, min(size, _FIRST_BYTES))
    end = 8 + int.from_bytes(contents[:8], "little")
    if end > len(contents) and end <= min(size, MAX_HEADER_BYTES):
        contents += read(len(contents), end)
    _write_sparse(target, contents[:end], size)
    try:
        file = SafetensorsFile(target)
    except CheckpointError:  # reported when the model is opened
        return
    infos = (file.info(tensor) for tensor in file.names if tensor.endswith(_DESCRIPTIONS))
    descriptions = sorted((info.begin, info.end) for info in infos if 0 < info.num_bytes <= _MAX_DESCRIPTION_BYTES)
    merged: list[tuple[int, int]] = []
    for begin, end in descriptions:
        if merged and begin - merged[-1][1] <= _MAX_GAP_BYTES:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    with open(target, "r+b") as opened, ThreadPoolExecutor(_MAX_PARALLEL) as pool:
        ranges = [(file.data_begin + begin, file.data_begin + end) for begin, end in merged]
        for (begin, _), values in zip(ranges, pool.map(lambda each: read(*each), ranges), strict=True):
            opened.seek(begin)
            opened.write(values)


def _write_gguf_header(target: Path, size: int, read: ReadRange) -> None:
    """Write the header, and the factors of rotary frequencies, which are configuration that is stored as tensors."""
    contents, length = b"", _FIRST_BYTES
    while len(contents) < size:
        contents += read(len(contents), min(size, length))
        target.write_bytes(contents)
        if _has_complete_header(target):
            break
        length *= 4
    _write_sparse(target, contents, size)
    try:
        file = GgufFile(target)
    except CheckpointError:  # reported when the model is opened
        return
    for tensor in CONFIGURATION_TENSORS & set(file.names):
        begin, end = file.byte_range(tensor)
        with open(target, "r+b") as opened:
            opened.seek(begin)
            opened.write(read(begin, end))


def _has_complete_header(path: Path) -> bool:
    try:
        GgufFile(path)
    except TruncatedHeaderError:
        return False
    except CheckpointError:  # about the tensors, which are missing here
        return True
    return True


def _write_sparse(target: Path, contents: bytes, size: int) -> None:
    """Write a sparse file of `size` bytes that begins with `contents`."""
    with open(target, "wb") as file:
        file.write(contents)
        file.truncate(max(size, len(contents)))


def _url(name: HubName, path: str, commit: str) -> str:
    from huggingface_hub import hf_hub_url

    return str(hf_hub_url(name.repo, path, revision=commit))


def _read_range(url: str, begin: int, end: int) -> bytes:
    client: Any = import_module("huggingface_hub.utils")
    headers = {**client.build_hf_headers(), "Range": f"bytes={begin}-{end - 1}"}
    response = client.get_session().get(url, headers=headers, **_redirects())
    client.hf_raise_for_status(response)
    data: bytes = response.content
    # A server that ignores the range sends the whole file.
    data = data[begin:end] if response.status_code == 200 else data
    if len(data) != end - begin:
        raise ConfigError(f"{url} sent {len(data)} bytes of {end - begin}. Try again.")
    return data


def _redirects() -> dict[str, bool]:
    """Return the argument with which the client's HTTP library follows redirects: httpx does so only on request."""
    import huggingface_hub

    return {"follow_redirects": True} if int(huggingface_hub.__version__.split(".")[0]) >= 1 else {}

"""Headers of a model on the Hugging Face Hub, without its weights: what its memory is estimated from.

The files of weights become sparse files of their own size, which hold the header and else nothing, so they are opened
like downloaded ones. A header is read by requests for a range of bytes: https://huggingface.co/docs/safetensors says
how long that of a .safetensors file is, and a .gguf file is read until its header is whole. Tensors that describe
quantised matrices, such as their shapes, are read too.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from aethermind.checkpoint.gguf import GgufFile, TruncatedHeaderError
from aethermind.checkpoint.gguf_tensors import LONGROPE_FACTORS, ROPE_FACTORS
from aethermind.checkpoint.safetensors import MAX_HEADER_BYTES, SafetensorsFile
from aethermind.errors import CheckpointError, ConfigError
from aethermind.model.hub import choose_files, explained
from aethermind.model.hub_files import HubName

__all__ = ["fetch_headers", "fetch_safetensors_header"]

_FIRST_BYTES = 1 << 18
"""Bytes of a file of weights that are asked for at first: more than most headers of .safetensors files have."""
_MAX_TEXT_BYTES = 1 << 20
"""Larger text files are tokenizers, of which only the size matters here."""
_MAX_PARALLEL = 8

_DESCRIPTIONS = (
    *(".weight_shape", ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"),
    *(".shape", ".axis", ".group_size", ".nbits", ".packing"),
)
"""The ends of the names of tensors that describe a quantised matrix (compressed-tensors, bitsandbytes, HQQ)."""
_MAX_DESCRIPTION_BYTES = 1 << 12
_MAX_GAP_BYTES = 1 << 16
"""Bytes between two descriptions up to which they are read by one request."""

ReadRange = Callable[[int, int], bytes]
"""Reads the bytes of a file from a position to another, which is not included, or to its end."""


def fetch_headers(name: HubName, directory: Path) -> Path:
    """Write the headers of a model into an empty directory, and return the path at which the model is opened.

    ConfigError says in one sentence why they cannot be had.
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
            read = partial(_read_range, _url(name, path, commit))
            if path in chosen.weights:
                (_write_gguf_header if path.endswith(".gguf") else _write_safetensors_header)(target, size, read)
            elif size <= _MAX_TEXT_BYTES:
                target.write_bytes(read(0, size) if size else b"")
            else:
                _write_sparse(target, b"", size)

        with ThreadPoolExecutor(_MAX_PARALLEL) as pool:
            list(pool.map(fetch, chosen.files))
    return directory if chosen.gguf is None else directory / chosen.gguf


def fetch_safetensors_header(name: HubName, path: str, commit: str, size: int, target: Path) -> None:
    """Write the header of a .safetensors file of `size` bytes. Errors are the client's (`explained`)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _write_safetensors_header(target, size, partial(_read_range, _url(name, path, commit)))


def _write_safetensors_header(target: Path, size: int, read: ReadRange) -> None:
    begin = read(0, min(size, _FIRST_BYTES))
    end = 8 + int.from_bytes(begin[:8], "little")
    if end > len(begin) and end <= min(size, MAX_HEADER_BYTES):
        begin += read(len(begin), end)
    _write_sparse(target, begin[:end], size)
    try:
        file = SafetensorsFile(target)
    except CheckpointError:  # the model is opened later, and then this is said
        return
    infos = (file.info(tensor) for tensor in file.names if tensor.endswith(_DESCRIPTIONS))
    small = sorted((info.begin, info.end) for info in infos if 0 < info.num_bytes <= _MAX_DESCRIPTION_BYTES)
    spans: list[tuple[int, int]] = []
    for first, last in small:
        if spans and first - spans[-1][1] <= _MAX_GAP_BYTES:
            spans[-1] = (spans[-1][0], last)
        else:
            spans.append((first, last))
    with open(target, "r+b") as opened, ThreadPoolExecutor(_MAX_PARALLEL) as pool:
        ranges = [(file.data_begin + first, file.data_begin + last) for first, last in spans]
        for (first, _), values in zip(ranges, pool.map(lambda span: read(*span), ranges), strict=True):
            opened.seek(first)
            opened.write(values)


def _write_gguf_header(target: Path, size: int, read: ReadRange) -> None:
    """Write the header, and the factors of rotary frequencies, which are configuration that is stored as tensors."""
    begin, wanted = b"", _FIRST_BYTES
    while len(begin) < size:
        begin += read(len(begin), min(size, wanted))
        target.write_bytes(begin)
        if _has_whole_header(target):
            break
        wanted *= 4
    _write_sparse(target, begin, size)
    file = GgufFile(target)
    for tensor in {ROPE_FACTORS, *LONGROPE_FACTORS.values()} & set(file.names):
        first, last = file.byte_range(tensor)
        with open(target, "r+b") as opened:
            opened.seek(first)
            opened.write(read(first, last))


def _has_whole_header(path: Path) -> bool:
    try:
        GgufFile(path)
    except TruncatedHeaderError:
        return False
    except CheckpointError:  # of its tensors, which are not there yet
        return True
    return True


def _write_sparse(target: Path, begin: bytes, size: int) -> None:
    with open(target, "wb") as file:
        file.write(begin)
        file.truncate(max(size, len(begin)))


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
    """The argument with which the client's HTTP library follows redirects: httpx does so only on request."""
    import huggingface_hub

    return {"follow_redirects": True} if int(huggingface_hub.__version__.split(".")[0]) >= 1 else {}

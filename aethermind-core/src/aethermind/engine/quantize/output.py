"""The output path of a quantised model: it is checked before quantisation, and replaced atomically at the end."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aethermind.atomic_file import PARTIAL
from aethermind.errors import InvalidArgumentError

__all__ = ["check_output", "check_space", "writing_to"]

_MARGIN_BYTES = 64 << 20
"""Disk space for configuration and tokenizer, and for what other processes write meanwhile."""
_SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".tiktoken")
_FILES = ("merges.txt", "vocab.txt", "README.md", "LICENSE", "LICENSE.txt", ".gitattributes")
_FOLDERS = re.compile(r"additional_chat_templates|\d+_[A-Z][A-Za-z]*")
"""The contents of a model folder: files with these suffixes or names, and these folders."""


def check_output(path: Path, source: Path, *, is_forced: bool, is_folder: bool) -> None:
    """InvalidArgumentError if `path` cannot be written, or exists and must not be replaced.

    With `is_forced` a quantised model is replaced, but neither the source model nor a folder with other files.
    """
    if path.is_symlink():
        raise InvalidArgumentError(f"{path} is a symbolic link. Give the place itself with --out.")
    if path.is_dir() and (path.resolve() == Path.cwd() or os.path.ismount(path)):
        raise InvalidArgumentError(f"{path} cannot be replaced as a whole. Give a new folder in it with --out.")
    parent = path.absolute().parent
    if not parent.is_dir():
        raise InvalidArgumentError(f"{parent} is not a directory. Create it first.")
    if not os.access(parent, os.W_OK):
        raise InvalidArgumentError(f"{parent} cannot be written to. Choose another place with --out.")
    if not path.exists():
        return
    files = [source, *source.iterdir()] if source.is_dir() else [source]
    if any(file.resolve().is_relative_to(path.resolve()) for file in files):
        raise InvalidArgumentError(f"{path} is the model itself, or holds it. Choose another place with --out.")
    is_empty = path.is_dir() and not any(path.iterdir())
    if is_empty and is_folder:
        return
    if not is_forced:
        raise InvalidArgumentError(f"{path} exists. Choose another place with --out, or replace it with --force.")
    if not (_is_quantized_folder(path) if is_folder else _is_gguf(path)):
        kind = "a folder of a quantised model alone" if is_folder else "a .gguf file"
        raise InvalidArgumentError(f"{path} is not {kind}, so --force does not replace it. Choose another place.")


def _is_quantized_folder(path: Path) -> bool:
    """Whether a folder contains a compressed-tensors model, and nothing else."""
    try:
        described = json.loads((path / "config.json").read_bytes())["quantization_config"]["quant_method"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    are_parts = (
        _FOLDERS.fullmatch(entry.name) if entry.is_dir() else entry.suffix in _SUFFIXES or entry.name in _FILES
        for entry in path.iterdir()
    )
    return described == "compressed-tensors" and all(are_parts)


def _is_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def check_space(path: Path, nbytes: int) -> None:
    """InvalidArgumentError if the disk has less free space than `nbytes` and a margin."""
    free, needed = shutil.disk_usage(path.absolute().parent).free, nbytes + _MARGIN_BYTES
    if free < needed:
        raise InvalidArgumentError(
            f"Writing the model needs {needed / 1e6:,.0f} MB, and the disk of {path} has {free / 1e6:,.0f} MB free. "
            "Free some, or choose another place with --out."
        )


@contextmanager
def writing_to(path: Path, *, is_folder: bool) -> Iterator[Path]:
    """Yield a temporary path in the same directory, which replaces `path` at the end of the block.

    It is an empty folder, or does not exist yet. It is deleted if the block raises. InvalidArgumentError if it cannot
    be written, as on a full disk; OSError if it cannot be renamed.
    """
    path = path.absolute()
    partial = path.with_name(f"{path.name[:100]}-{os.getpid()}{PARTIAL}")
    try:
        if is_folder:
            partial.mkdir()
        yield partial
        if path.is_dir():
            old = partial.with_name(f"{partial.name}.old")
            path.rename(old)
            partial.rename(path)
            shutil.rmtree(old)
        else:
            partial.replace(path)
    except OSError as error:
        if error.filename is not None:
            raise
        reason = error.strerror or str(error)
        raise InvalidArgumentError(f"{path} cannot be written: {reason}. Choose another place with --out.") from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)

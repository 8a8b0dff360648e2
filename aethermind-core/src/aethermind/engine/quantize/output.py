"""The place that a quantised model is written to: checked before the work, and complete or not there at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aethermind.atomic_file import PARTIAL
from aethermind.errors import InvalidArgumentError

__all__ = ["check_output", "check_space", "writing_to"]

_MARGIN_BYTES = 64 << 20
"""For configuration and tokenizer, and for what else is written meanwhile."""
_MARKS = ("config.json", "model.safetensors")


def check_output(path: Path, source: Path, *, is_forced: bool, is_folder: bool) -> None:
    """InvalidArgumentError if `path` exists already and is not to be replaced, or is not a place to write to.

    With `is_forced` a model is replaced, and nothing else: neither the source nor a folder of other files.
    """
    parent = path.absolute().parent
    if not parent.is_dir():
        raise InvalidArgumentError(f"{parent} is not a directory. Create it first.")
    if not os.access(parent, os.W_OK):
        raise InvalidArgumentError(f"{parent} cannot be written to. Choose another place with --out.")
    if not path.exists():
        return
    if source.resolve().is_relative_to(path.resolve()):
        raise InvalidArgumentError(f"{path} is the model itself, or holds it. Choose another place with --out.")
    is_empty = path.is_dir() and not any(path.iterdir())
    if is_empty and is_folder:
        return
    if not is_forced:
        raise InvalidArgumentError(f"{path} exists. Choose another place with --out, or replace it with --force.")
    is_model = path.is_dir() and any((path / name).is_file() for name in _MARKS) if is_folder else path.is_file()
    if not is_model:
        raise InvalidArgumentError(f"{path} is not a model, so --force does not replace it. Choose another place.")


def check_space(path: Path, nbytes: int) -> None:
    """InvalidArgumentError if the disk of a new file or folder has less than `nbytes` free."""
    free = shutil.disk_usage(path.absolute().parent).free
    if free < nbytes + _MARGIN_BYTES:
        raise InvalidArgumentError(
            f"The model takes {nbytes / 1e9:,.2f} GB, and the disk of {path} has {free / 1e9:,.2f} GB free. Free some, "
            "or choose another place with --out."
        )


@contextmanager
def writing_to(path: Path, *, is_folder: bool) -> Iterator[Path]:
    """Yield a path beside `path`, of an empty folder or of no file, which replaces it at the end of the block.

    Nothing is left of it if the block raises. OSError if it cannot be renamed.
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
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)

"""Files that a command writes at its end, tried before its work begins, and named where that goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aethermind.errors import InvalidArgumentError

__all__ = ["check_writable", "writing"]


@contextmanager
def writing(path: Path, noun: str) -> Iterator[None]:
    """What the system refuses inside, a full disk say, is an InvalidArgumentError about the file, called `noun`.

    The system's own error names no file once that is open.
    """
    try:
        yield
    except OSError as error:
        raise InvalidArgumentError(f"{noun} {path} cannot be written: {error.strerror}. Pass another one.") from None


def check_writable(path: Path, noun: str) -> None:
    """InvalidArgumentError unless the file, called `noun`, can be written; what is in it stays as it is.

    Pipes and devices are not tried: opening one may be all that its reader waits for.
    """
    with writing(path, noun):
        is_there = path.exists()
        if is_there and not (path.is_file() or path.is_dir()):
            return
        path.open("a").close()
        if not is_there:
            path.unlink()

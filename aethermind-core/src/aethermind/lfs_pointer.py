"""Git LFS pointers: the small text files that `git clone` leaves in place of large files where git-lfs is missing."""

from __future__ import annotations

from pathlib import Path

__all__ = ["lfs_pointer_fault"]

_BEGINNING = b"version https://git-lfs.github.com/spec/"
_MOST_BYTES = 1024
"""The specification's limit on a pointer."""


def lfs_pointer_fault(path: Path) -> str | None:
    """What is wrong with a file that turned out to be unreadable, and what to do, if it is a pointer; else None."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError:
        return None
    if not content.startswith(_BEGINNING) or len(content) > _MOST_BYTES:
        return None
    return (
        f"{path} is a Git LFS pointer, not the file itself. Run `git lfs pull` in its directory, or fetch the model "
        "with `hf download`."
    )

"""Advice in errors about files that cannot be read."""

from __future__ import annotations

from pathlib import Path

__all__ = ["remedy"]

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def remedy(path: Path, error: BaseException | None = None, *, otherwise: str = "Fetch the file again.") -> str:
    """Return what to do about a file that cannot be read: `otherwise`, unless the cause is known.

    Known causes are permissions, errors of the system, and pointers of Git LFS. `error` is what was raised; libraries
    in other languages raise untyped errors, so its text counts as well.
    """
    if isinstance(error, PermissionError) or "os error 13" in str(error):
        return "Let this user read it: chmod u+r, or sudo chown."
    if isinstance(error, OSError):
        return "Check the path and the disk."
    return _pointer_remedy(path) or otherwise


def _pointer_remedy(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError:
        return None
    if not is_pointer:
        return None
    return (
        "This is a Git LFS pointer, not the file: run `git lfs pull` in the clone, or download the model with "
        "`hf download`."
    )

"""Advice for error messages about files that cannot be read: permissions, disk errors, pointers of Git LFS."""

from __future__ import annotations

from pathlib import Path

__all__ = ["remedy"]

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def remedy(path: Path, error: BaseException | None = None, *, otherwise: str = "Fetch the file again.") -> str:
    """Return the advice for a file that cannot be read: one sentence for a known cause, else `otherwise`.

    Known causes are missing permissions, OSErrors, and a Git LFS pointer in place of the file. `error` is the exception
    that was raised. Its text is examined too, because native libraries raise untyped errors.
    """
    if isinstance(error, PermissionError) or "os error 13" in str(error):
        return "Let this user read it: chmod u+r, or sudo chown."
    if isinstance(error, OSError):
        return "Check the path and the disk."
    return _lfs_remedy(path) or otherwise


def _lfs_remedy(path: Path) -> str | None:
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

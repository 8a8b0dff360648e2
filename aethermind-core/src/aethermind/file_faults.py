"""What to do about a file that cannot be read, by what is wrong with it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["remedy"]

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def remedy(path: Path, error: BaseException | None = None, *, otherwise: str = "Fetch the file again.") -> str:
    """The sentence behind the reason why `path` cannot be read: `otherwise` where its contents are to blame.

    A file that this user may not read is as it should be, and so is the pointer that `git clone` without Git LFS
    leaves; `error` is what was raised, which libraries in other languages raise without a type.
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

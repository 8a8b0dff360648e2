"""Files that a command writes at its end: checked before the work begins, plots among them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aethermind.errors import InvalidArgumentError
from aethermind.first_party import pip_install

__all__ = ["COLORS", "check_plot", "check_writable", "plot", "writing"]


@contextmanager
def writing(path: Path, noun: str) -> Iterator[None]:
    """Turn an OSError within the block, such as a full disk, into an InvalidArgumentError that names the file.

    `noun` says what the file is. An OSError names no file once that is open.
    """
    try:
        yield
    except OSError as error:
        raise InvalidArgumentError(f"{noun} {path} cannot be written: {error.strerror}. Pass another one.") from None


def check_writable(path: Path, noun: str) -> None:
    """InvalidArgumentError unless a file can be written; its content is kept. `noun` says what the file is.

    Pipes and devices are not opened, because opening and closing one may end its reader.
    """
    with writing(path, noun):
        exists = path.exists()
        if exists and not (path.is_file() or path.is_dir()):
            return
        path.open("a").close()
        if not exists:
            path.unlink()


COLORS = ("#2a78d6", "#eb6834", "#1baf7a", "#eda100", "#4a3aa7", "#e34948")
_FORMATS = (".svg", ".png")
_INK, _GRID = "#52514e", "#e3e2de"


def check_plot(path: Path) -> None:
    """InvalidArgumentError, before the work begins, if a plot cannot be drawn to `path`."""
    if path.suffix.lower() not in _FORMATS:
        raise InvalidArgumentError(f"--plot {path} should end in {' or '.join(_FORMATS)}.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidArgumentError(
            f"--plot needs matplotlib. Install it with `{pip_install('aethermind-core[plot]')}`."
        ) from None
    check_writable(path, "Plot")


@contextmanager
def plot(path: Path, *, num_axes: int) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes, side by side, written to `path` at the end. Equal content gives equal bytes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: Any = {"axes.edgecolor": _GRID, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK}
    style |= {"text.color": _INK, "axes.grid": True, "grid.color": _GRID, "axes.axisbelow": True, "font.size": 9}
    style |= {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.hashsalt": "aethermind",
        "svg.fonttype": "none",
    }
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(1, num_axes, figsize=(4 * num_axes, 3.6), layout="constrained")
        yield figure, axes
        with writing(path, "Plot"):
            figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None, dpi=144)
        pyplot.close(figure)

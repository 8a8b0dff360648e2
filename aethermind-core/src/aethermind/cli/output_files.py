"""Files that a command writes at its end, such as plots; whether they can be written is checked at its start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aethermind.errors import InvalidArgumentError
from aethermind.first_party import pip_install_command

__all__ = ["COLORS", "check_plot", "check_writable", "plot", "writing"]


@contextmanager
def writing(path: Path, noun: str) -> Iterator[None]:
    """Turn an OSError within the block, such as a full disk, into an InvalidArgumentError that names the file.

    `noun` says what the file is. Errors of writing to an open file do not name the file by themselves.
    """
    try:
        yield
    except OSError as error:
        raise InvalidArgumentError(f"{noun} {path} cannot be written: {error.strerror}. Pass another one.") from None


def check_writable(path: Path, noun: str) -> None:
    """Raise InvalidArgumentError unless a file can be written; its content is kept. `noun` says what the file is.

    Pipes and devices are not opened: the reader of a pipe would see its end.
    """
    with writing(path, noun):
        exists = path.exists()
        if exists and not (path.is_file() or path.is_dir()):
            return
        path.open("a").close()
        if not exists:
            path.unlink()


COLORS = ("#2a78d6", "#eb6834", "#1baf7a", "#eda100", "#4a3aa7", "#e34948")
_PLOT_SUFFIXES = (".svg", ".png")
_TEXT_COLOR, _GRID_COLOR = "#52514e", "#e3e2de"


def check_plot(path: Path) -> None:
    """Raise InvalidArgumentError if a plot cannot be drawn: unknown suffix, no matplotlib, or `path` not writable."""
    if path.suffix.lower() not in _PLOT_SUFFIXES:
        raise InvalidArgumentError(f"--plot {path} should end in {' or '.join(_PLOT_SUFFIXES)}.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidArgumentError(
            f"--plot needs matplotlib. Install it with `{pip_install_command('aethermind-core[plot]')}`."
        ) from None
    check_writable(path, "Plot")


@contextmanager
def plot(path: Path, *, num_axes: int) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes, side by side; at the end, write it to `path`, in reproducible bytes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: Any = {
        "axes.edgecolor": _GRID_COLOR,
        "axes.labelcolor": _TEXT_COLOR,
        "xtick.color": _TEXT_COLOR,
        "ytick.color": _TEXT_COLOR,
    }
    style |= {
        "text.color": _TEXT_COLOR,
        "axes.grid": True,
        "grid.color": _GRID_COLOR,
        "axes.axisbelow": True,
        "font.size": 9,
    }
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

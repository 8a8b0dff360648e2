"""What plugins print while they are loaded goes to standard error: standard output is for what a command prints.

A banner at import would otherwise stand before the JSON of `--json`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

__all__ = ["stdout_to_stderr"]

_lock = threading.Lock()
_num_open = 0
"""Blocks under way, in any thread; only the first one redirects and only the last one restores."""
_restore = contextlib.ExitStack()


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Within this block, standard output is standard error, for Python, for C libraries and for child processes.

    Streams belong to the process, so it holds for its other threads as well, for the moment that the block takes.
    """
    global _num_open
    with _lock:
        _num_open += 1
        if _num_open == 1:
            _redirect()
    try:
        yield
    finally:
        with _lock:
            _num_open -= 1
            if _num_open == 0:
                _restore.close()


def _redirect() -> None:
    _flush()
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of the two is closed
        pass
    else:
        _restore.callback(os.close, kept)
        _restore.callback(os.dup2, kept, 1)
    _restore.callback(_flush)
    if sys.stderr is not None:
        _restore.enter_context(contextlib.redirect_stdout(sys.stderr))


def _flush() -> None:
    """Empty the buffers of Python's stdout and of C's, which would otherwise be written to the wrong place later."""
    import ctypes

    with contextlib.suppress(OSError, ValueError, AttributeError):  # no stream, or a closed one
        sys.stdout.flush()
    with contextlib.suppress(OSError, AttributeError):  # a platform without a C library of that name
        ctypes.CDLL(None).fflush(None)

"""Redirection of standard output to standard error while plugins load.

Standard output has only a command's own output. Otherwise a banner that a plugin prints at import would precede the
JSON of `--json`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

__all__ = ["stdout_to_stderr"]

_lock = threading.Lock()
_num_active = 0
"""Active contexts of all threads: the first one redirects, the last one restores."""
_restore = contextlib.ExitStack()


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send standard output to standard error within this block, for Python, C libraries and child processes.

    Streams belong to the process, so the redirection affects its other threads for the duration of the block, too.
    """
    global _num_active
    with _lock:
        _num_active += 1
        if _num_active == 1:
            _redirect()
    try:
        yield
    finally:
        with _lock:
            _num_active -= 1
            if _num_active == 0:
                _restore.close()


def _redirect() -> None:
    _flush()
    try:
        saved_stdout = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of the two is closed
        pass
    else:
        _restore.callback(os.close, saved_stdout)
        _restore.callback(os.dup2, saved_stdout, 1)
    _restore.callback(_flush)
    if sys.stderr is not None:
        _restore.enter_context(contextlib.redirect_stdout(sys.stderr))


def _flush() -> None:
    """Flush the buffers of Python's and C's stdout, which would otherwise be written to the wrong stream later."""
    import ctypes

    with contextlib.suppress(OSError, ValueError, AttributeError):  # no stream, or a closed one
        sys.stdout.flush()
    with contextlib.suppress(OSError, TypeError, AttributeError):  # Windows: the C library is not the process's own
        ctypes.CDLL(None).fflush(None)

"""The `aethermind` command: one file a verb, nothing imported before it is needed."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process; exits with 0, 1 (a bug), 2 (a user error), 130 (Ctrl-C) or 141 (unread)."""
    import atexit
    import gc

    ending = _Ending()
    atexit.register(ending.hurry)  # first, so that it is done last
    # Importing and loading make objects that stay; looking for garbage among them every so often takes a tenth of it.
    gc.set_threshold(100_000)
    try:
        from aethermind.cli.app import run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except SystemExit as end:
        ending.code = end.code
        raise
    ending.code = 0


class _Ending:
    """The end of the process once everything has been done that its end is for.

    The interpreter would take all objects apart one by one, for 0.2 s where a vocabulary is among them; the system
    takes all of their memory at once.
    """

    def __init__(self) -> None:
        self.code: object = None

    def hurry(self) -> None:
        """Leave with the exit code, unless it is not known or there is still something to be said about the output."""
        import os
        import sys

        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            return
        if isinstance(self.code, int):
            os._exit(self.code)

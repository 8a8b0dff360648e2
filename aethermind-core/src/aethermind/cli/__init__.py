"""The `aethermind` command: one module per command, each imported when it is needed."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line; exits with 0, 1 (a bug), 2 (a user error), 130 (Ctrl-C) or 141 (closed pipe)."""
    import atexit
    import gc

    process_exit = _FastExit()
    atexit.register(process_exit.run)  # registered first, so that it runs last
    # Imports and loading allocate long-lived objects; repeated garbage collections would slow both down.
    gc.set_threshold(100_000)
    try:
        from aethermind.cli.app import run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except SystemExit as end:
        process_exit.code = end.code
        raise
    process_exit.code = 0


class _FastExit:
    """Ends the process after all other exit handlers, without freeing objects.

    The system reclaims all memory at once, which is faster than the interpreter's deallocation of a large vocabulary.
    """

    def __init__(self) -> None:
        self.code: object = None

    def run(self) -> None:
        """Exit with the code, unless it is unknown or output cannot be flushed, which the interpreter reports."""
        import os
        import sys

        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            return
        if isinstance(self.code, int):
            os._exit(self.code)

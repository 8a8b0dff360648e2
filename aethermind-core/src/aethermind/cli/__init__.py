"""The `aethermind` command: one file a verb, nothing imported before it is needed."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process; exits with 0, 1 (a bug), 2 (a user error) or 130 (Ctrl-C)."""
    import gc

    # Importing and loading make objects that stay; looking for garbage among them every so often takes a tenth of it.
    gc.set_threshold(100_000)
    try:
        from aethermind.cli.app import run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()

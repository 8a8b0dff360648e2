"""`aethermind cache`: show and delete the cached files that make later starts fast."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from aethermind import env
from aethermind.atomic_file import PARTIAL
from aethermind.cli import console, options
from aethermind.cli.commands import SummaryGroup
from aethermind.errors import AetherMindError, InvalidArgumentError

__all__ = ["KINDS", "app"]

EXAMPLES = console.examples("aethermind cache list", "aethermind cache list --json", "aethermind cache clear --yes")
LIST_EXAMPLES = console.examples("aethermind cache list", "aethermind cache list --json")
CLEAR_EXAMPLES = console.examples(
    "aethermind cache clear --yes", "aethermind cache clear --kind weights --kind tokenizers --yes"
)


@dataclass(frozen=True, slots=True)
class CacheCategory:
    """Cached files of one kind: `patterns` are globs below the cache directory, `title` describes the kind."""

    patterns: tuple[str, ...]
    title: str

    def files(self) -> Iterator[tuple[Path, int, float]]:
        """Yield each file with its size in bytes and its last use in seconds since 1970."""
        for pattern in self.patterns:
            for path in env.cache_directory().glob(pattern):
                with suppress(OSError):
                    if path.is_file():
                        status = path.stat()
                        yield path, status.st_size, status.st_mtime


KINDS: Mapping[str, CacheCategory] = {
    "weights": CacheCategory(("weights/*.safetensors", f"weights/*{PARTIAL}"), "weights in the layout of the kernels"),
    "tokenizers": CacheCategory(("tokenizers/*.bpe", f"tokenizers/*{PARTIAL}"), "tables of large tokenizers"),
    "digests": CacheCategory(("digests/*",), "hashes of checkpoint files"),
    "probes": CacheCategory(
        ("probes.json", "probes-*", "trials.json", "trials-*", "opens.json", "opens-*"),
        "results of checking devices and plugins",
    ),
}

app = typer.Typer(
    cls=SummaryGroup,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="Show or delete the cached files that make later starts fast.",
    epilog=EXAMPLES,
)


@app.callback()
def _root(ctx: typer.Context) -> None:
    """Show or delete the cached files that make later starts fast."""
    if ctx.invoked_subcommand is None:
        list_kinds()


@app.command("list", epilog=LIST_EXAMPLES)
def list_kinds(as_json: options.AsJson = False) -> None:
    """Show the cached files by kind: their number, their size, and when they were last used.

    All of them are made again when needed. They are in $XDG_CACHE_HOME/aethermind, by default ~/.cache/aethermind.
    """
    records = [_record(name, kind) for name, kind in KINDS.items()]
    if as_json:
        console.print_json({"directory": env.cache_directory(), "kinds": records})
        return
    rows = [("kind", "files", "size", "last used", "what"), *map(_row, records)]
    print(f"In {env.cache_directory()}:")
    print(console.columns(rows))
    if models := _models():
        print("\nWeights by model:")
        print(console.columns([("model", "size", "last used"), *models]))


@app.command("clear", epilog=CLEAR_EXAMPLES)
def clear(
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            help=f"Delete only this kind (may be given several times): {', '.join(KINDS)}.",
            show_default="all",
        ),
    ] = None,
    is_confirmed: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete cached files, after asking.

    Running processes keep what they have mapped; the next start writes the files again.
    """
    unknown = next((name for name in kinds or () if name not in KINDS), None)
    if unknown is not None:
        raise InvalidArgumentError(f"There is no kind {unknown!r:.80} of cached files; known: {', '.join(KINDS)}.")
    files = [file for name, kind in KINDS.items() if name in (kinds or KINDS) for file in kind.files()]
    if not files:
        print(f"Nothing of that is in {env.cache_directory()}.")
        return
    size = console.quantity(sum(size for _, size, _ in files), "B")
    count = f"{len(files)} file{'s' if len(files) > 1 else ''}"
    if not is_confirmed:
        _confirm(f"Delete {count}, {size}, in {env.cache_directory()}?")
    for path, _, _ in files:
        path.unlink(missing_ok=True)
    print(f"Deleted {count}, {size}.")


def _record(name: str, kind: CacheCategory) -> dict[str, Any]:
    files = list(kind.files())
    last = max((used for _, _, used in files), default=None)
    return {
        "kind": name,
        "what": kind.title,
        "num_files": len(files),
        "size_bytes": sum(size for _, size, _ in files),
        "last_used": None if last is None else datetime.fromtimestamp(last, UTC).isoformat(timespec="seconds"),
    }


def _models() -> list[tuple[str, str, str]]:
    """Return weights by model, the largest first; a file that does not name its model is listed by its own name."""
    from aethermind.checkpoint.safetensors import SafetensorsFile

    sizes: dict[str, tuple[int, float]] = {}
    for path, size, used in KINDS["weights"].files():
        try:
            model = SafetensorsFile(path).metadata.get("model") or path.name
        except (AetherMindError, OSError):
            model = path.name
        known, last = sizes.get(model, (0, 0.0))
        sizes[model] = (known + size, max(last, used))
    rows = sorted(sizes.items(), key=lambda item: -item[1][0])
    return [
        (model, console.quantity(size, "B"), _local_time(datetime.fromtimestamp(last, UTC)))
        for model, (size, last) in rows
    ]


def _local_time(moment: datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M}"


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    used = record["last_used"]
    when = "-" if used is None else _local_time(datetime.fromisoformat(used))
    return record["kind"], str(record["num_files"]), console.quantity(record["size_bytes"], "B"), when, record["what"]


def _confirm(question: str) -> None:
    """Ask for confirmation; exit with code 0 unless the user confirms. InvalidArgumentError without a terminal."""
    if not console.is_terminal(sys.stdin):
        raise InvalidArgumentError("There is no terminal to ask on; pass --yes to delete without being asked.")
    try:
        answer = input(f"{question} [y/N]: ")
    except EOFError:
        answer = ""
        print()
    if answer.strip().lower() not in ("y", "yes"):
        print("Nothing was deleted.")
        raise typer.Exit()

"""What this package registers: a proposer, a logits processor, a command and a check for `doctor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aethermind.plugins import hookimpl

if TYPE_CHECKING:
    import typer

_PROVIDER = "aethermind-phrases"


@hookimpl
def register_proposers(registry: Any) -> None:
    registry.register("phrases", "aethermind_phrases.proposer:PhraseProposer", provider=_PROVIDER)


@hookimpl
def register_logits_processors(registry: Any) -> None:
    registry.register("avoid-phrases", "aethermind_phrases.processor:AvoidPhrases", provider=_PROVIDER)


@hookimpl
def register_commands(app: typer.Typer) -> None:
    app.command("phrases")(_list_phrases)


@hookimpl
def doctor_checks() -> list[tuple[str, Callable[[], str]]]:
    return [("phrases", _check)]


def _list_phrases() -> None:
    """Print the book of phrases."""
    from aethermind_phrases import book

    for phrase in book.read():
        print(phrase)


def _check() -> str:
    from aethermind_phrases import book

    return f"{len(book.read())} phrases in {book.path()}."

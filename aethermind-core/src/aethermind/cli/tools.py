"""`aethermind tools`: whether the tool calls that a model is trained to write are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from aethermind.cli import console, options
from aethermind.cli.commands import SummaryGroup

if TYPE_CHECKING:
    from aethermind.text.answer_format import AnswerFormat

__all__ = ["app"]

EXAMPLES = console.examples("aethermind tools check ./Qwen3-0.6B", "aethermind tools check ./Qwen3-0.6B --json")

app = typer.Typer(
    cls=SummaryGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Check how tool calls of a model are read.",
    epilog=EXAMPLES,
)


@app.callback()
def _root() -> None:
    """Check how tool calls of a model are read."""


@app.command("check", epilog=EXAMPLES)
def check(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's name, a directory, or a .gguf file.")],
    as_json: options.AsJson = False,
) -> None:
    """Render two tool calls by a model's chat template, and read them back as the server does.

    The exit code is 1 if a name or an argument is not what it was. No weights are read.
    """
    from aethermind.engine.process.client import TokenizerFrontend
    from aethermind.runtime import Runtime
    from aethermind.text.tool_call_probe import probe_tool_calls

    frontend = TokenizerFrontend.open(Runtime.boot(), model)
    format = frontend.answer_format.for_tokens(frontend.tokenizer)
    answers = probe_tool_calls(frontend.tokenizer, format)
    is_right = all(answer.is_right for answer in answers)
    if as_json:
        records = [{"text": one.text, "calls": one.calls, "found": one.found} for one in answers]
        console.print_json({"model": model, "is_right": is_right, **_described(format), "answers": records})
    else:
        rows = [(name, ", ".join(value) or "none") for name, value in _described(format).items()]
        print(console.columns(rows))
        for answer in answers:
            text = console.printable(answer.text.strip()) or "(no call)"
            print(f"\nThe chat template writes:\n{text}\n")
            for index, (name, arguments) in enumerate(answer.calls):
                found = answer.found[index] if index < len(answer.found) else None
                read = "right" if found == (name, arguments) else f"read as {found}" if found else "not read"
                print(f"{name}: {read}")
    if not is_right:
        raise typer.Exit(1)


def _described(format: AnswerFormat) -> dict[str, list[str]]:
    """Return the tags of a format by their purpose."""
    calls = ["harmony"] if format.is_harmony else [f"{one.opening}…{one.closing}" for one in format.tool_calls]
    if format.has_bare_calls:
        calls.append("an answer of calls only")
    return {
        "reasoning": ["…".join(format.reasoning)] if format.reasoning else [],
        "calls": calls,
        "control_tokens": list(format.control_tokens),
    }

"""`aethermind tokenize` and `aethermind detokenize`: text to token ids and back, by a model's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import console, options
from aethermind.cli.flags import with_settings
from aethermind.cli.prompt_text import note_if_prompt_looks_like_model, read_text
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["DETOKENIZE_EXAMPLES", "TOKENIZE_EXAMPLES", "detokenize", "parse_token_ids", "tokenize"]

TOKENIZE_EXAMPLES = console.examples(
    'aethermind tokenize "Once upon a time"',
    'echo "The old fox" | aethermind tokenize - --json',
    "aethermind tokenize --file README.md --model demo",
)
DETOKENIZE_EXAMPLES = console.examples(
    "aethermind detokenize 382 383 258 351",
    'aethermind tokenize "Once upon a time" --json | aethermind detokenize -',
    "aethermind detokenize 382 383 258 351 --json",
)


@with_settings
def tokenize(
    text: Annotated[str | None, typer.Argument(help="The text; - reads standard input.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="Read the text from a UTF-8 file.")] = None,
    model: options.Model = None,
    *,
    tokenizer: options.Tokenizer,
    as_json: options.AsJson = False,
) -> None:
    """Show the tokens of a text, one per line with its id.

    The text is tokenised like the prompt of `generate`: nothing is added, and special tokens that are written out in it
    are recognised.
    """
    content = read_text(text, file, noun="text", option="--file")
    note_if_prompt_looks_like_model(text, "tokenize", model=model or tokenizer, chosen=options.chosen_model(model))
    loaded = open_tokenizer(model, tokenizer)
    token_ids = loaded.encode(content)
    if as_json:
        names = [loaded.id_to_token(token_id) for token_id in token_ids]
        console.print_json({"text": content, "token_ids": token_ids, "tokens": names})
        return
    rows = [(str(token_id), _shown(loaded, token_id)) for token_id in token_ids]
    width = max((len(token_id) for token_id, _ in rows), default=0)
    for token_id, shown in rows:
        print(f"{token_id:>{width}}  {shown}")
    total = f"{len(token_ids)} token{'s' * (len(token_ids) != 1)}"
    console.print_note(total)


@with_settings
def detokenize(
    token_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IDS...", help="Token ids; - reads them, or the output of `tokenize --json`, from standard input."
        ),
    ] = None,
    model: options.Model = None,
    *,
    tokenizer: options.Tokenizer,
    as_json: options.AsJson = False,
) -> None:
    """Print the text of token ids, special tokens included."""
    words = token_ids or []
    text = read_text("-", None, noun="list of token ids", option="-") if words == ["-"] else " ".join(words)
    ids = parse_token_ids(text)
    if not ids:
        raise InvalidArgumentError("Found no token ids. Give them as arguments, or as - for standard input.")
    loaded = open_tokenizer(model, tokenizer)
    for token_id in ids:
        if loaded.id_to_token(token_id) is None:
            raise InvalidArgumentError(
                f"Token id {token_id} is not in the vocabulary of {loaded.vocab_size} tokens. "
                "Pass --model the model that the ids come from."
            )
    decoded = loaded.decode(ids, skip_special_tokens=False)
    if as_json:
        console.print_json({"text": decoded, "token_ids": ids})
    else:
        print(decoded)


def open_tokenizer(model: str | None, tokenizer: str | None) -> Tokenizer:
    """Open the given tokenizer, else that of the chosen model, without loading the model."""
    from aethermind.runtime import Runtime

    return Runtime.boot().open_tokenizer_source(tokenizer or options.chosen_model(model)).tokenizer()


def parse_token_ids(text: str) -> list[int]:
    """Parse token ids: a JSON list, an object with `token_ids`, or numbers separated by spaces or commas."""
    if text.lstrip().startswith(("[", "{")):
        values = _from_json(text)
    else:
        values = [int(word) if word.isdecimal() else word for word in text.replace(",", " ").split()]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidArgumentError(f"{value!r:.60} is not a token id. Give integers from 0 on, such as 72 101 108.")
    return values


def _from_json(text: str) -> list[Any]:
    import json

    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"The token ids are not valid JSON ({error}). Give a list of integers.") from None
    values = content.get("token_ids") if isinstance(content, dict) else content
    if not isinstance(values, list):
        raise InvalidArgumentError("The JSON holds no token_ids. Give a list, or an object with token_ids in it.")
    return values


def _shown(tokenizer: Tokenizer, token_id: int) -> str:
    """Return a token's text in quotes, or its bytes if they are a part of a character only."""
    raw = tokenizer.token_bytes(token_id)
    if raw is None:
        return repr(tokenizer.token_text(token_id))
    try:
        return repr(raw.decode())
    except UnicodeDecodeError:
        return repr(raw)

"""Commands of Ollama, vLLM, llama.cpp and SGLang, each with the equivalent command here."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

__all__ = ["EQUIVALENTS", "equivalent_command"]


def equivalent_command(command: str, args: Sequence[str]) -> str | None:
    """The equivalent of another program's command with these arguments, or None.

    The result ends a sentence that begins with "Type".
    """
    answer = EQUIVALENTS.get(command)
    return None if answer is None else answer([word for word in args if not word.startswith("-")])


def _run(words: Sequence[str]) -> str:
    return f"`aethermind run {_model(words)}`"


def _pull(words: Sequence[str]) -> str:
    return f"`aethermind pull {shlex.quote(words[0]) if words else 'ORG/NAME'}`"


def _show(words: Sequence[str]) -> str:
    return f"`aethermind models show {_model(words)}`, with `--estimate` for the memory that it needs here"


def _remove(words: Sequence[str]) -> str:
    return f"`aethermind models rm {_model(words)}`"


def _serve(words: Sequence[str]) -> str:
    return f"`aethermind serve {_model(words)}`"


def _complete(words: Sequence[str]) -> str:
    text = shlex.join([" ".join(words)]) if words else '"Once upon a time"'
    return f"`aethermind generate --model MODEL {text}`"


def _help(words: Sequence[str]) -> str:
    return f"`aethermind {shlex.join([*words, '--help'])}`"


def _use_model_files(words: Sequence[str]) -> str:
    return f"`aethermind chat {_model(words)}`: a model is a directory or a .gguf file, which nothing has to register"


def _model(words: Sequence[str]) -> str:
    return shlex.quote(words[0]) if words else "MODEL"


EQUIVALENTS: Mapping[str, Callable[[Sequence[str]], str]] = {
    "cli": _run,
    "complete": _complete,
    "completions": lambda _: "`aethermind completion bash`, `zsh` or `fish`",
    "cp": _use_model_files,
    "create": _use_model_files,
    "download": _pull,
    "embed": lambda _: "`aethermind serve MODEL`, and ask its /v1/embeddings; in Python `LLM(…).embed(…)`",
    "help": _help,
    "info": lambda _: "`aethermind doctor`",
    "launch_server": _serve,
    "list": lambda _: "`aethermind models list`, or `aethermind models FOLDER` for the models in a folder",
    "ls": lambda _: "`aethermind models list`, or `aethermind models FOLDER` for the models in a folder",
    "rm": _remove,
    "server": _serve,
    "show": _show,
    "stop": lambda _: "Ctrl-C where `aethermind serve` runs, or send it SIGTERM: it finishes what is open",
    "version": lambda _: "`aethermind --version`",
}

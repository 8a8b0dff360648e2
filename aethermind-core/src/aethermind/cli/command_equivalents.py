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
    model, prompt = _model(words), shlex.join([" ".join(words[1:])])
    if len(words) > 1:
        return f"`aethermind generate --model {model} {prompt}`, or `aethermind chat {model}` for a conversation"
    return f'`aethermind chat {model}`, or `aethermind generate --model {model} "Once upon a time"`'


def _pull(words: Sequence[str]) -> str:
    name = words[0] if words else "OWNER/NAME"
    folder = shlex.quote(name.rstrip("/").rpartition("/")[2])
    return f"`hf download {shlex.quote(name)} --local-dir {folder}`, then `aethermind chat ./{folder}`"


def _ps(words: Sequence[str]) -> str:
    del words
    return (
        "`curl http://127.0.0.1:8000/v1/models` for the models of a running `aethermind serve`, "
        "which keeps them loaded until it ends"
    )


def _show(words: Sequence[str]) -> str:
    return f"`aethermind models {_model(words)}`, with `--estimate` for the memory that it needs here"


def _remove(words: Sequence[str]) -> str:
    return (
        f"`rm -r {_model(words)}` for a model that you downloaded; `aethermind cache clear` deletes "
        "what AetherMind itself wrote"
    )


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
    "list": lambda _: "`aethermind models`, or `aethermind models FOLDER` for the models in a folder",
    "ls": lambda _: "`aethermind models`, or `aethermind models FOLDER` for the models in a folder",
    "ps": _ps,
    "pull": _pull,
    "rm": _remove,
    "run": _run,
    "server": _serve,
    "show": _show,
    "stop": lambda _: "Ctrl-C where `aethermind serve` runs, or send it SIGTERM: it finishes what is open",
    "version": lambda _: "`aethermind --version`",
}

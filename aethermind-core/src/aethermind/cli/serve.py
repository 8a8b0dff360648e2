"""`aethermind serve`: models behind OpenAI's HTTP API."""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aethermind import log
from aethermind.cli import console, options
from aethermind.cli.groups import ModelOptions, StepOptions, as_arguments, with_groups
from aethermind.cli.server_options import (
    AccessOptions,
    LimitOptions,
    LogOptions,
    ProcessOptions,
    ServedEngineOptions,
)
from aethermind.errors import InvalidArgumentError, SettingsError
from aethermind.plugins.first_party import pip_install

if TYPE_CHECKING:
    from aethermind.engine.process import EngineProcess
    from aethermind.llm import LLM

__all__ = ["EXAMPLES", "named_models", "serve"]

EXAMPLES = console.examples(
    "aethermind serve",
    "aethermind serve ./Qwen2-0.5B-Instruct --quantization int8 --port 8080",
    "aethermind serve --served-model-name storyteller --max-open-requests 16",
    "aethermind serve --model small=demo --model large=./Qwen2-0.5B-Instruct",
)

_GARBAGE_AT_ONCE = 1_000
"""Objects made since the collector looked last, less those that have gone by themselves."""


@with_groups
def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="A model directory, a .gguf file, or the name of an installed model. NAME=MODEL names it for clients; "
            "may be given several times.",
            show_default="AETHERMIND_MODEL, or demo",
        ),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option("--served-model-name", help="The model's name for clients.", show_default="its path"),
    ] = None,
    chat_template: options.ChatTemplate = None,
    *,
    access: AccessOptions,
    numbers: ModelOptions,
    served: ServedEngineOptions,
    steps: StepOptions,
    process: ProcessOptions,
    limits: LimitOptions,
    logging: LogOptions,
) -> None:
    """Serve models through an OpenAI-compatible HTTP API. Ctrl-C lets open answers finish; a second one does not."""
    try:
        from aethermind import server
    except ImportError as error:
        raise SettingsError(f"The server needs {error.name}. Run `{pip_install('aethermind[serve]')}`.") from None
    from aethermind.cli.load import LoadProgress, open_llm
    from aethermind.engine.config import EngineConfig, named_adapters
    from aethermind.engine.process import EngineProcess
    from aethermind.text.chat_templates import ChosenTemplate

    log.set_format(logging.log_format)
    tenants = access.tenants(limits.quota())
    paths = named_models(model, served_model_name)
    if numbers.tokenizer is not None and len(paths) > 1:
        raise InvalidArgumentError("--tokenizer is that of one model, and several are given; serve them one by one.")
    if numbers.adapters and len(paths) > 1:
        raise InvalidArgumentError("--adapter is that of one model, and several are given; serve them one by one.")
    if chat_template is not None and len(paths) > 1:
        raise InvalidArgumentError("--chat-template is for one model, and several are given; serve them one by one.")
    template = None if chat_template is None else ChosenTemplate.read(chat_template)
    if taken := sorted(paths.keys() & named_adapters(numbers.adapters or {}).keys()):
        raise InvalidArgumentError(f"A model and an adapter are both called {taken[0]!r}; write --adapter NAME=PATH.")
    groups = (numbers, served, steps)
    with ExitStack() as stack:
        listening = stack.enter_context(server.bind(access.host, access.port))

        def opened(path: str) -> LLM | EngineProcess:
            if process.engine == "inprocess":
                return stack.enter_context(closing(open_llm(path, *groups)))
            progress = stack.enter_context(LoadProgress())
            config = EngineConfig(**as_arguments(*groups))
            return EngineProcess(path, config, policy=process.policy(), on_progress=progress)

        models = {name: opened(path) for name, path in paths.items()}
        bound_host, bound_port = listening.getsockname()[:2]

        def announce() -> None:
            _keep_pauses_short()
            shown = f"[{bound_host}]" if ":" in bound_host else bound_host
            address = f"http://{shown}:{bound_port}"
            with suppress(OSError):  # whoever cannot be told is served all the same
                print(f"Serving {', '.join(models)} at {address}/v1 (Ctrl-C stops)", file=sys.stderr)
                print(f"To chat, open {address} in a browser", file=sys.stderr, flush=True)
            log.write_aside()

        tracing = None
        if logging.otlp_endpoint is not None:
            tracing = stack.enter_context(closing(server.open_tracing(logging.otlp_endpoint)))
        asyncio.run(
            server.serve(
                models,
                listening,
                limits=limits.limits(),
                tenants=tenants,
                origins=access.allowed_origins or (),
                log_prompts=logging.log_prompts,
                tracing=tracing,
                strict_requests=access.strict_requests,
                chat_template=template,
                on_ready=announce,
            )
        )


def _keep_pauses_short() -> None:
    """Have the garbage collector look at what requests leave, little at a time: nobody is answered while it looks.

    What was loaded stays, and is never looked at again. The command line's own threshold is for work that ends soon.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE_AT_ONCE)


def named_models(given: list[str] | None, served_model_name: str | None) -> dict[str, str]:
    """The models of `--model` by what clients call them: NAME in NAME=MODEL, else as they were given."""
    given = given or [options.chosen_model(None)]
    named = [_split_name(one) for one in given]
    if served_model_name is not None:
        if not served_model_name.strip():
            raise InvalidArgumentError("--served-model-name is empty; say what clients call the model.")
        if len(named) > 1:
            raise InvalidArgumentError(
                "--served-model-name names one model, and several are given; write --model NAME=MODEL for each."
            )
        return {served_model_name: named[0][1]}
    models = dict(named)
    if len(models) < len(named):
        raise InvalidArgumentError(
            f"Two models have the same name among {', '.join(name for name, _ in named)}; write --model NAME=MODEL."
        )
    return models


def _split_name(given: str) -> tuple[str, str]:
    name, _, model = given.partition("=")
    return (name, model) if name and model and not Path(given).exists() else (given, given)

"""`aethermind serve`: serve models through OpenAI's HTTP API."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind import env, log
from aethermind.cli import console, options
from aethermind.cli.flags import with_settings
from aethermind.cli.served_models import arriving_models, listed_models, model_pool
from aethermind.cli.settings import (
    AccessOptions,
    ExecutionOptions,
    LimitOptions,
    LogOptions,
    ModelOptions,
    ModelPoolOptions,
    ProcessOptions,
    ServedEngineOptions,
    as_arguments,
)
from aethermind.errors import InvalidArgumentError, SettingsError
from aethermind.first_party import pip_install_command
from aethermind.model.hub import hub_name

if TYPE_CHECKING:
    from aethermind.engine.process import EngineProcess
    from aethermind.llm import LLM
    from aethermind.server import Limits, Quota
    from aethermind.server.openai.stored_responses import ResponseStore

__all__ = ["EXAMPLES", "serve", "tenants_of"]

EXAMPLES = console.examples(
    "aethermind serve",
    "aethermind serve ./Qwen2-0.5B-Instruct --quantization int8 --port 8080",
    "aethermind serve --served-model-name storyteller --max-concurrent-requests 16",
    "aethermind serve --model small=demo --model large=./Qwen2-0.5B-Instruct",
    "aethermind serve --models-dir ./models --models-max 2 --model-ttl 300",
)

_NUM_SHOWN = 12
"""The maximum number of model names that are printed at start."""

_GC_THRESHOLD = 1_000
"""Allocations minus deallocations that trigger a collection of the youngest generation (gc.set_threshold)."""


@with_settings
def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="A model's name on the Hugging Face Hub (ORG/NAME[@REVISION][:QUANTIZATION]) or among the installed "
            "ones, a directory, or a .gguf file. NAME=MODEL names it for clients; may be given several times.",
            show_default="AETHERMIND_MODEL, or demo",
        ),
    ] = None,
    *,
    served_model_name: options.ServedName,
    chat_template: options.ChatTemplate,
    access: AccessOptions,
    model_options: ModelOptions,
    served: ServedEngineOptions,
    execution: ExecutionOptions,
    pool: ModelPoolOptions,
    process: ProcessOptions,
    limits: LimitOptions,
    logging: LogOptions,
) -> None:
    """Serve models through an OpenAI-compatible HTTP API. Ctrl-C waits for open requests; a second one aborts them."""
    try:
        from aethermind import server
    except ImportError as error:
        raise SettingsError(
            f"The server needs {error.name}. Run `{pip_install_command('aethermind[serve]')}`."
        ) from None
    from aethermind.engine.config import named_adapters
    from aethermind.text.chat_templates import ChosenTemplate

    log.set_format(logging.format)
    quota = server.Quota(limits.max_concurrency_per_key, limits.requests_per_minute, limits.tokens_per_minute)
    tenants = tenants_of(access, quota)
    listed = listed_models(model, served_model_name, pool)
    paths = {name: listed_model.path for name, listed_model in listed.items()}
    if len(paths) > 1:
        _check_options_of_several_models(model_options, chat_template)
    template = None if chat_template is None else ChosenTemplate.read(chat_template)
    if shared := sorted(paths.keys() & named_adapters(model_options.adapters or {}).keys()):
        raise InvalidArgumentError(f"A model and an adapter are both called {shared[0]!r}; write --adapter NAME=PATH.")
    groups = (model_options, served, execution)
    missing = _missing(paths)
    arrives = bool(missing) and process.engine == "process" and not pool.is_on_demand
    if missing and not arrives:
        _download([paths[name] for name in missing])
    with ExitStack() as stack:
        listening = stack.enter_context(server.bind(access.host, access.port))
        models: Mapping[str, LLM | EngineProcess] | server.ModelPool
        names = list(paths)
        if pool.is_on_demand:
            models = model_pool(listed, as_arguments(*groups), pool, process, template)
            names = list(models.names)
        elif arrives:
            models = arriving_models(paths, as_arguments(*groups), process, template)
        else:
            models = {name: _open_engine(path, groups, process, stack) for name, path in paths.items()}
        tracing = None
        if logging.otlp_endpoint is not None:
            tracing = stack.enter_context(closing(server.open_tracing(logging.otlp_endpoint)))
        asyncio.run(
            server.serve(
                models,
                listening,
                limits=_limits(limits),
                tenants=tenants,
                origins=access.allowed_origins or (),
                log_prompts=logging.prompts,
                log_prefixes=logging.prefixes,
                tracing=tracing,
                strict_requests=access.strict_requests,
                admin_key=access.admin_key,
                response_store=_response_store(limits),
                chat_template=template,
                on_listening=partial(_on_listening, missing, *listening.getsockname()[:2]),
                on_ready=partial(_on_ready, names, *listening.getsockname()[:2]),
            )
        )


def _missing(models: Mapping[str, str]) -> list[str]:
    """The names of the models of the Hugging Face Hub that are not in the cache."""
    if all(hub_name(model) is None for model in models.values()):
        return []
    from aethermind.runtime import Runtime

    registry = Runtime.boot().models
    return [name for name, model in models.items() if registry.is_missing(model)]


def _download(models: Iterable[str]) -> None:
    """Download models of the Hugging Face Hub here, where Ctrl-C interrupts it; engines then find them in the cache."""
    from aethermind.runtime import Runtime

    registry = Runtime.boot().models
    for model in models:
        registry.locate(model)


def _open_engine(path: str, groups: Sequence[Any], process: ProcessOptions, stack: ExitStack) -> LLM | EngineProcess:
    """Open a model's engine in this process or one of its own; `stack` closes what is opened here."""
    from aethermind.cli.progress import LoadProgress, open_llm
    from aethermind.engine.config import EngineConfig
    from aethermind.engine.process import EngineProcess, RestartPolicy

    if process.engine == "inprocess":
        return stack.enter_context(closing(open_llm(path, *groups)))
    progress = stack.enter_context(LoadProgress())
    config = EngineConfig(**as_arguments(*groups))
    policy = RestartPolicy(process.max_restarts, stall_timeout_s=process.engine_step_timeout)
    return EngineProcess(path, config, policy=policy, on_progress=progress)


def _on_listening(missing: Sequence[str], host: str, port: int) -> None:
    with suppress(OSError):
        named = ", ".join(missing[:_NUM_SHOWN])
        print(f"Listening at {_address(host, port)} while {named} is downloaded (Ctrl-C stops)", file=sys.stderr)


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _on_ready(models: Sequence[str], host: str, port: int) -> None:
    """Print the address, and prepare garbage collector and logging for serving."""
    _tune_garbage_collector()
    address = _address(host, port)
    with suppress(OSError):  # serving does not depend on stderr
        named = ", ".join(models[:_NUM_SHOWN])
        more = f" and {len(models) - _NUM_SHOWN} more models" if len(models) > _NUM_SHOWN else ""
        print(f"Serving {named}{more} at {address}/v1 (Ctrl-C stops)", file=sys.stderr)
        print(f"To chat, open {address} in a browser", file=sys.stderr, flush=True)
    log.write_in_background()


def _check_options_of_several_models(model_options: ModelOptions, chat_template: str | None) -> None:
    """Raise InvalidArgumentError for an option that applies to a single model."""
    given = {
        "--tokenizer": model_options.tokenizer is not None,
        "--adapter": bool(model_options.adapters),
        "--chat-template": chat_template is not None,
    }
    for flag, is_given in given.items():
        if is_given:
            raise InvalidArgumentError(f"{flag} is for one model, but several are given. Serve them one by one.")


def tenants_of(access: AccessOptions, quota: Quota) -> Any:
    """Return the tenants of a server: its API keys, with `quota` for keys that have no quota in the file.

    Raises InvalidArgumentError where the server would accept requests without a key from other machines and
    `insecure_no_auth` does not allow that.
    """
    from aethermind import server
    from aethermind.server.access import admin_key_hash, is_loopback

    file = None if access.api_keys_file is None else env.expand_home(access.api_keys_file)
    tenants = server.read_tenants(access.api_key or (), file, quota)
    if access.admin_key is not None:
        admin_key_hash(access.admin_key, tenants)  # an unusable key is refused before a model is loaded
    if not (is_loopback(access.host) or tenants or access.insecure_no_auth):
        raise InvalidArgumentError(
            f"Everyone who reaches {access.host} could use this server. Set AETHERMIND_API_KEY, or say "
            "--insecure-no-auth."
        )
    return tenants


def _limits(limits: LimitOptions) -> Limits:
    from aethermind.server import Limits

    return Limits(
        max_concurrent_requests=limits.max_concurrent_requests,
        max_queued_requests=limits.max_queued_requests,
        max_queued_tokens=limits.max_queued_tokens,
        max_body_bytes=limits.max_body_bytes,
        max_header_bytes=limits.max_header_bytes,
        max_json_depth=limits.max_json_depth,
        request_timeout_s=limits.request_timeout,
        keep_alive_timeout_s=limits.keep_alive_timeout,
        send_timeout_s=limits.send_timeout,
        drain_timeout_s=limits.drain_timeout,
    )


def _response_store(limits: LimitOptions) -> ResponseStore | None:
    from aethermind.server.openai.stored_responses import ResponseStore

    if limits.max_stored_response_bytes is None:
        return None
    return ResponseStore(limits.max_stored_response_bytes, limits.stored_response_ttl)


def _tune_garbage_collector() -> None:
    """Collect garbage often and in small amounts, because requests wait during a collection.

    Objects of loaded models are frozen, so that they are not scanned. The command line's own threshold suits commands
    that end soon.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)

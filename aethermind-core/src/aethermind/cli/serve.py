"""`aethermind serve`: models behind OpenAI's HTTP API."""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind import log
from aethermind.cli import console, options
from aethermind.cli.sections import LogSettings
from aethermind.errors import InvalidArgumentError, SettingsError

if TYPE_CHECKING:
    from aethermind.engine.process import EngineProcess
    from aethermind.llm import LLM

__all__ = ["EXAMPLES", "named_models", "serve"]

EXAMPLES = console.examples(
    "aethermind serve",
    "aethermind serve --model ./Qwen2-0.5B-Instruct --quantization int8 --port 8080",
    "aethermind serve --served-model-name storyteller --max-open-requests 16",
    "aethermind serve --model small=demo --model large=./Qwen2-0.5B-Instruct",
)

ENGINES = ("process", "inprocess")
_GARBAGE_AT_ONCE = 1_000
"""Objects made since the collector looked last, less those that have gone by themselves."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="A model directory, a .gguf file, or the name of an installed model; NAME=MODEL gives it a name, and "
            "several are served side by side.",
            show_default="AETHERMIND_MODEL, or demo",
        ),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option("--served-model-name", help="What clients call the model.", show_default="its path"),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="What clients have to send as a bearer token; may be given several times.",
            show_default="AETHERMIND_API_KEY",
        ),
    ] = None,
    api_keys_file: Annotated[
        Path | None, typer.Option(help="YAML, TOML or JSON with keys, their names and quotas.")
    ] = None,
    allow_no_key: Annotated[
        bool, typer.Option("--allow-no-key", help="Listen beyond this machine without a key.")
    ] = False,
    device: options.Device = "auto",
    dtype: options.DType = "auto",
    quantization: options.Quantization = None,
    lm_head: options.LmHead = None,
    load_format: options.LoadFormat = "auto",
    max_model_len: options.MaxModelLen = None,
    num_kv_blocks: options.NumKvBlocks = None,
    block_size: options.BlockSize = 16,
    kv_cache_dtype: options.KvCacheDType = "auto",
    kv_store: options.KvStore = None,
    swap_space: options.SwapSpace = 0.0,
    threads: options.NumThreads = None,
    max_num_seqs: options.MaxNumSeqs = 64,
    max_num_batched_tokens: options.MaxNumBatchedTokens = 512,
    scheduling_policy: Annotated[
        str, typer.Option(help="Who goes first: fair, fcfs, priority, shortest, deadline, or a plugin's.")
    ] = "fair",
    max_sessions: Annotated[
        int, typer.Option(help="Conversations (session_id) whose KV cache is kept for their next turn.", min=1)
    ] = 256,
    session_ttl: Annotated[float, typer.Option(help="Seconds that it is kept after a turn.")] = 600.0,
    fallback: options.Fallback = "warn",
    speculative_method: options.SpeculativeMethod = None,
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculativeTokens = 8,
    prompt_lookup_max: options.PromptLookupMax = 4,
    prompt_lookup_min: options.PromptLookupMin = 2,
    executor: options.Executor = "inline",
    engine: Annotated[
        str, typer.Option(help="Where models run: each in a process of its own, or inprocess, in the server's.")
    ] = "process",
    max_restarts: Annotated[
        int, typer.Option(help="How often in a row an engine's process that ended is started again.", min=0)
    ] = 5,
    stall_timeout: Annotated[
        float, typer.Option(help="Seconds that a step may take before the engine's process is ended; 0 is any.", min=0)
    ] = 600.0,
    max_open_requests: Annotated[int, typer.Option(help="The most answers open at once; others get 429.", min=1)] = 256,
    max_queued_requests: Annotated[int, typer.Option(help="Of those, answers that have not begun.", min=1)] = 256,
    max_queued_tokens: Annotated[int, typer.Option(help="Prompt tokens of answers that have not begun.", min=1)] = 1
    << 20,
    max_concurrency_per_key: Annotated[
        int | None, typer.Option(help="Answers that one key has open at once.", min=1)
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(help="Requests that one key makes in any 60 seconds.", min=1)
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(help="Tokens that one key reads and writes in any 60 seconds.", min=1)
    ] = None,
    max_body_bytes: Annotated[int, typer.Option(help="Bytes of a request's body.", min=1)] = 4 << 20,
    max_header_bytes: Annotated[int, typer.Option(help="Bytes of a request's headers.", min=1)] = 64 << 10,
    max_json_depth: Annotated[int, typer.Option(help="Lists and objects inside each other in a body.", min=1)] = 64,
    request_timeout: Annotated[float, typer.Option(help="Seconds until an answer has to be finished.")] = 600.0,
    idle_timeout: Annotated[
        float, typer.Option(help="Seconds that a client may be silent while it sends a request.")
    ] = 60.0,
    slow_reader_timeout: Annotated[
        float, typer.Option(help="Seconds that a client may take to read what its stream holds.")
    ] = 30.0,
    drain_timeout: Annotated[float, typer.Option(help="Seconds for open answers when told to stop.")] = 30.0,
    log_format: Annotated[str, typer.Option(help="How the log is written: text, or json, an object a line.")] = "text",
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write what was asked into the log, too.")] = False,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(help="Send a trace of each request there (OTLP over HTTP).", show_default="nowhere"),
    ] = None,
) -> None:
    """Serve models over HTTP to OpenAI's clients. Ctrl-C lets open answers finish; a second one does not."""
    try:
        from aethermind import server
    except ImportError as error:
        raise SettingsError(f"The server needs {error.name}. Run `pip install aethermind[serve]`.") from None
    from aethermind.cli.load import LoadProgress, open_llm
    from aethermind.engine.config import EngineConfig
    from aethermind.engine.process import EngineProcess, RestartPolicy

    LogSettings(format=log_format)
    log.set_format(log_format)
    if engine not in ENGINES:
        raise InvalidArgumentError(f"--engine is {engine!r} but should be one of {', '.join(ENGINES)}.")
    tenants = server.read_tenants(
        api_key or (),
        None if api_keys_file is None else Path(api_keys_file),
        server.Quota(max_concurrency_per_key, requests_per_minute, tokens_per_minute),
    )
    if host not in LOOPBACK and not tenants and not allow_no_key:
        raise InvalidArgumentError(
            f"Everyone who reaches {host} could use this server. Set AETHERMIND_API_KEY, or say --allow-no-key."
        )
    limits = server.Limits(
        max_open_requests=max_open_requests,
        max_queued_requests=max_queued_requests,
        max_queued_tokens=max_queued_tokens,
        max_body_bytes=max_body_bytes,
        max_header_bytes=max_header_bytes,
        max_json_depth=max_json_depth,
        request_timeout_s=request_timeout,
        idle_timeout_s=idle_timeout,
        slow_reader_timeout_s=slow_reader_timeout,
        drain_timeout_s=drain_timeout,
    )
    paths = named_models(model, served_model_name)
    settings: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "quantization": quantization,
        "lm_head": lm_head,
        "load_format": load_format,
        "max_model_len": max_model_len,
        "num_kv_blocks": num_kv_blocks,
        "block_size": block_size,
        "kv_cache_dtype": kv_cache_dtype,
        "kv_store": kv_store,
        "swap_space": swap_space,
        "num_threads": threads,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_sessions": max_sessions,
        "session_ttl": session_ttl,
        "scheduling_policy": scheduling_policy,
        "fallback": fallback,
        "speculative_method": speculative_method,
        "draft_model": draft_model,
        "num_speculative_tokens": num_speculative_tokens,
        "prompt_lookup_max": prompt_lookup_max,
        "prompt_lookup_min": prompt_lookup_min,
        "executor": executor,
    }
    policy = RestartPolicy(max_restarts, stall_timeout_s=stall_timeout)
    with ExitStack() as stack:
        listening = stack.enter_context(server.bind(host, port))

        def opened(path: str) -> LLM | EngineProcess:
            if engine == "inprocess":
                return stack.enter_context(closing(open_llm(path, **settings)))
            progress = stack.enter_context(LoadProgress())
            return EngineProcess(path, EngineConfig(**settings), policy=policy, on_progress=progress)

        models = {name: opened(path) for name, path in paths.items()}
        bound_host, bound_port = listening.getsockname()[:2]

        def announce() -> None:
            _keep_pauses_short()
            shown = f"[{bound_host}]" if ":" in bound_host else bound_host
            address = f"http://{shown}:{bound_port}"
            print(f"Serving {', '.join(models)} at {address}/v1 (Ctrl-C stops)", file=sys.stderr)
            print(f"To chat, open {address} in a browser", file=sys.stderr, flush=True)

        tracing = None
        if otlp_endpoint is not None:
            tracing = stack.enter_context(closing(server.open_tracing(otlp_endpoint)))
        asyncio.run(
            server.serve(
                models,
                listening,
                limits=limits,
                tenants=tenants,
                log_prompts=log_prompts,
                tracing=tracing,
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

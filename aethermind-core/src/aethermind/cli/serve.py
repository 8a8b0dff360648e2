"""`aethermind serve`: models behind OpenAI's HTTP API."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack, closing
from typing import Annotated

import typer

from aethermind import log
from aethermind.cli import console, options
from aethermind.cli.sections import LogSettings
from aethermind.errors import InvalidArgumentError, SettingsError

__all__ = ["EXAMPLES", "serve"]

EXAMPLES = console.examples(
    "aethermind serve",
    "aethermind serve --model ./Qwen2-0.5B-Instruct --quantization int8 --port 8080",
    "aethermind serve --served-model-name storyteller --max-open-requests 16",
)

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    model: options.Model = None,
    served_model_name: Annotated[
        str | None, typer.Option("--served-model-name", help="What clients call the model.", show_default="its path")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(help="What clients have to send as a bearer token.", show_default="AETHERMIND_API_KEY"),
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
    swap_space: options.SwapSpace = 0.0,
    threads: options.NumThreads = None,
    max_num_seqs: options.MaxNumSeqs = 64,
    max_num_batched_tokens: options.MaxNumBatchedTokens = 512,
    scheduling_policy: Annotated[
        str, typer.Option(help="Who goes first: fcfs, priority, shortest, deadline, or a plugin's.")
    ] = "fcfs",
    fallback: options.Fallback = "warn",
    max_open_requests: Annotated[int, typer.Option(help="The most answers open at once; others get 429.", min=1)] = 256,
    request_timeout: Annotated[float, typer.Option(help="Seconds until an answer has to be finished.")] = 600.0,
    drain_timeout: Annotated[float, typer.Option(help="Seconds for open answers when told to stop.")] = 30.0,
    log_format: Annotated[str, typer.Option(help="How the log is written: text, or json, an object a line.")] = "text",
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write what was asked into the log, too.")] = False,
) -> None:
    """Serve a model over HTTP to OpenAI's clients. Ctrl-C lets open answers finish; a second one does not."""
    try:
        from aethermind import server
    except ImportError as error:
        raise SettingsError(f"The server needs {error.name}. Run `pip install aethermind[serve]`.") from None
    from aethermind.cli.load import open_llm

    LogSettings(format=log_format)
    log.set_format(log_format)
    if host not in LOOPBACK and api_key is None and not allow_no_key:
        raise InvalidArgumentError(
            f"Everyone who reaches {host} could use this server. Set AETHERMIND_API_KEY, or say --allow-no-key."
        )
    limits = server.Limits(max_open_requests, request_timeout_s=request_timeout, drain_timeout_s=drain_timeout)
    path = options.chosen_model(model)
    with ExitStack() as stack:
        listening = stack.enter_context(server.bind(host, port))
        llm = open_llm(
            path,
            device=device,
            dtype=dtype,
            quantization=quantization,
            lm_head=lm_head,
            load_format=load_format,
            max_model_len=max_model_len,
            num_kv_blocks=num_kv_blocks,
            block_size=block_size,
            kv_cache_dtype=kv_cache_dtype,
            swap_space=swap_space,
            num_threads=threads,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            scheduling_policy=scheduling_policy,
            fallback=fallback,
        )
        stack.enter_context(closing(llm))
        served = served_model_name or path
        bound_host, bound_port = listening.getsockname()[:2]

        def announce() -> None:
            shown = f"[{bound_host}]" if ":" in bound_host else bound_host
            address = f"http://{shown}:{bound_port}"
            print(f"Serving {served} at {address}/v1 (Ctrl-C stops)", file=sys.stderr)
            print(f"To chat, open {address} in a browser", file=sys.stderr, flush=True)

        asyncio.run(
            server.serve(
                {served: llm}, listening, limits=limits, api_key=api_key, log_prompts=log_prompts, on_ready=announce
            )
        )

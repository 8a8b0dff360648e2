"""The options of `aethermind serve` in groups, and the server's own types that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import options
from aethermind.cli.groups import KvCacheOptions
from aethermind.cli.sections import LogSettings, ServerSettings
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.engine.process import RestartPolicy
    from aethermind.server import Limits, Quota

__all__ = ["AccessOptions", "LimitOptions", "LogOptions", "ProcessOptions", "ServedEngineOptions"]

ENGINES = ("process", "inprocess")


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Where the server listens, who may come in, and which requests it takes."""

    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8000
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="API key that clients must send as a bearer token; may be given several times.",
            show_default="AETHERMIND_API_KEY",
        ),
    ] = None
    api_keys_file: Annotated[
        Path | None, typer.Option(help="YAML, TOML or JSON file of API keys with names and quotas.")
    ] = None
    allow_no_key: Annotated[
        bool,
        typer.Option(
            "--allow-no-key", help="Allow listening on other addresses than this machine's own without an API key."
        ),
    ] = False
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(
            help="Web page origins allowed to call the API (CORS), such as https://chat.example; * allows all."
        ),
    ] = None
    strict_requests: Annotated[
        bool,
        typer.Option("--strict-requests", help="Refuse requests with unknown fields instead of ignoring those."),
    ] = False

    def __post_init__(self) -> None:
        ServerSettings(allowed_origins=tuple(self.allowed_origins or ()))

    def tenants(self, quota: Quota) -> Any:
        """Who may come in; InvalidArgumentError where that is everyone, from beyond this machine, unasked."""
        from aethermind import server
        from aethermind.server.loopback import is_loopback

        tenants = server.read_tenants(
            self.api_key or (), None if self.api_keys_file is None else Path(self.api_keys_file), quota
        )
        if not (is_loopback(self.host) or tenants or self.allow_no_key):
            raise InvalidArgumentError(
                f"Everyone who reaches {self.host} could use this server. Set AETHERMIND_API_KEY, or say "
                "--allow-no-key."
            )
        return tenants


@dataclass(frozen=True, slots=True)
class ServedEngineOptions(KvCacheOptions):
    """How much an engine remembers, and whom it serves when."""

    kv_store: options.KvStore = None
    swap_space: Annotated[
        float,
        typer.Option(help="GiB of host memory to which preempted requests are swapped out when the KV cache is full."),
    ] = 0.0
    num_threads: options.NumThreads = None
    max_num_seqs: options.MaxNumSeqs = 64
    max_num_batched_tokens: options.MaxNumBatchedTokens = 512
    scheduling_policy: Annotated[
        str, typer.Option(help="Which request goes first: fair, fcfs, priority, shortest, deadline, or a plugin's.")
    ] = "fair"
    max_sessions: Annotated[
        int, typer.Option(help="Most conversations (session_id) whose KV cache is kept for the next turn.", min=1)
    ] = 256
    session_ttl: Annotated[float, typer.Option(help="Seconds for which it is kept after a turn.")] = 600.0
    fallback: options.Fallback = "warn"
    deterministic: options.Deterministic = False


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Where engines run, and what happens when one ends."""

    engine: Annotated[
        str, typer.Option(help="Where models run: process (one for each model) or inprocess (in the server's).")
    ] = "process"
    max_restarts: Annotated[
        int, typer.Option(help="How often in a row a crashed engine process is restarted.", min=0)
    ] = 5
    stall_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds after which a step counts as hung and the engine process is killed; 0 is never.", min=0
        ),
    ] = 600.0

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise InvalidArgumentError(f"--engine is {self.engine!r} but should be one of {', '.join(ENGINES)}.")

    def policy(self) -> RestartPolicy:
        from aethermind.engine.process import RestartPolicy

        return RestartPolicy(self.max_restarts, stall_timeout_s=self.stall_timeout)


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """How much the server takes on, how much of it for one key, and how long it waits."""

    max_open_requests: Annotated[int, typer.Option(help="Most requests open at once; further ones get 429.", min=1)] = (
        256
    )
    max_queued_requests: Annotated[int, typer.Option(help="Most of them that wait for their first token.", min=1)] = 256
    max_queued_tokens: Annotated[int, typer.Option(help="Most prompt tokens of requests that wait.", min=1)] = 1 << 20
    max_concurrency_per_key: Annotated[
        int | None, typer.Option(help="Most requests that one API key has open at once.", min=1)
    ] = None
    requests_per_minute: Annotated[
        int | None, typer.Option(help="Most requests of one API key in any 60 seconds.", min=1)
    ] = None
    tokens_per_minute: Annotated[
        int | None, typer.Option(help="Most prompt and answer tokens of one API key in any 60 seconds.", min=1)
    ] = None
    max_body_bytes: Annotated[int, typer.Option(help="Largest request body in bytes.", min=1)] = 4 << 20
    max_header_bytes: Annotated[int, typer.Option(help="Largest request headers in bytes.", min=1)] = 64 << 10
    max_json_depth: Annotated[
        int, typer.Option(help="Deepest nesting of lists and objects in a request body.", min=1)
    ] = 64
    request_timeout: Annotated[float, typer.Option(help="Seconds that one answer may take.")] = 600.0
    idle_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds that a client may be silent while it sends a request, and that a connection may be idle."
        ),
    ] = 60.0
    slow_reader_timeout: Annotated[
        float, typer.Option(help="Seconds that a stream may be blocked by a client that does not read it.")
    ] = 30.0
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that open answers may take to finish when the server stops.")
    ] = 30.0

    def __post_init__(self) -> None:
        for name in ("request_timeout", "idle_timeout", "slow_reader_timeout", "drain_timeout"):
            if not (value := getattr(self, name)) > 0:
                raise InvalidArgumentError(
                    f"--{name.replace('_', '-')} is {value} but must be a number of seconds above 0."
                )

    def quota(self) -> Quota:
        """What each key may have that says nothing else."""
        from aethermind.server import Quota

        return Quota(self.max_concurrency_per_key, self.requests_per_minute, self.tokens_per_minute)

    def limits(self) -> Limits:
        """Everyone's together."""
        from aethermind.server import Limits

        return Limits(
            max_open_requests=self.max_open_requests,
            max_queued_requests=self.max_queued_requests,
            max_queued_tokens=self.max_queued_tokens,
            max_body_bytes=self.max_body_bytes,
            max_header_bytes=self.max_header_bytes,
            max_json_depth=self.max_json_depth,
            request_timeout_s=self.request_timeout,
            idle_timeout_s=self.idle_timeout,
            slow_reader_timeout_s=self.slow_reader_timeout,
            drain_timeout_s=self.drain_timeout,
        )


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is told of the requests, how and to whom."""

    log_format: Annotated[str, typer.Option(help="Log as text, or as json (an object per line).")] = "text"
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts into the log.")] = False
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(help="Send a trace of each request to this URL (OTLP over HTTP).", show_default="off"),
    ] = None

    def __post_init__(self) -> None:
        LogSettings(format=self.log_format)

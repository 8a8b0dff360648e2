"""Observes HTTP requests: gives each an id and a record, counts its outcome, and logs it.

The record of a request holds what the log, the metrics and the traces show of it and of each prompt in it.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from starlette.datastructures import Headers, MutableHeaders

from aethermind.log import get_logger, quoted
from aethermind.server.access import header_of
from aethermind.server.anthropic import is_messages_path
from aethermind.server.openai.errors import LIMIT_CODES, as_api_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from aethermind.engine.requests.output_delta import OutputDelta
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.observation.metrics import Metrics
    from aethermind.server.observation.tracing import Tracing

__all__ = ["EmbeddingRecord", "GenerationRecord", "HttpRecord", "Observer", "RecentPrompts", "log_request"]

_PROBES = frozenset({"/health", "/ready", "/metrics", "/version"})


@dataclass(slots=True)
class GenerationRecord:
    """A prompt and its completions. Points in time are those of `time.perf_counter`. Mutable.

    `arrived_s` is the arrival of the HTTP request, so TTFT includes reading and tokenising it. `queue_s`, `prefill_s`
    and `decode_s` are the durations of the engine's phases.
    """

    model: str
    arrived_s: float
    params: SamplingParams
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    """Tokens of all completions."""
    longest_completion: int = 0
    """Tokens of the longest completion."""
    first_token_s: float | None = None
    last_token_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    num_preemptions: int = 0
    finish_reasons: Sequence[str] = ()
    """One for each completion once all have ended: stop, length, abort (the client disconnected) or error."""
    finish_reason_by_index: dict[int, str | None] = field(default_factory=dict)
    """The finish reason of each completion so far, by its index."""

    def update(self, delta: OutputDelta) -> int:
        """Update the record by new output; returns the number of new tokens."""
        num_new_tokens = 0
        for completion in delta.completions:
            num_new_tokens += len(completion.token_ids)
            self.finish_reason_by_index[completion.index] = completion.finish_reason
            self.longest_completion = max(self.longest_completion, completion.num_tokens)
        self.num_output_tokens += num_new_tokens
        if num_new_tokens:
            self.last_token_s = time.perf_counter()
            if self.first_token_s is None:
                self.first_token_s = self.last_token_s
        engine_times = delta.metrics
        self.num_prompt_tokens = delta.num_prompt_tokens
        self.num_cached_tokens = delta.num_cached_tokens
        self.num_preemptions = engine_times.num_preemptions
        if delta.finished:
            self.finish_reasons = tuple(
                self.finish_reason_by_index[index] or "abort" for index in sorted(self.finish_reason_by_index)
            )
            self.queue_s = _elapsed_s(engine_times.arrival_s, engine_times.admitted_s)
            self.prefill_s = _elapsed_s(engine_times.admitted_s, engine_times.first_token_s)
            self.decode_s = _elapsed_s(engine_times.first_token_s, engine_times.finished_s)
        return num_new_tokens

    @property
    def inference_s(self) -> float | None:
        """Seconds of prefill and decode."""
        return None if self.prefill_s is None or self.decode_s is None else self.prefill_s + self.decode_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first (TPOT). Completions of a prompt run in one batch."""
        if self.first_token_s is None or self.last_token_s is None or self.longest_completion < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.longest_completion - 1)


@dataclass(frozen=True, slots=True)
class EmbeddingRecord:
    """The texts of an embedding request."""

    model: str
    num_prompt_tokens: int


_NUM_RECENT_PROMPTS = 64
_SHOWN_TOKENS = 8


class CommonPrefix(NamedTuple):
    """The longest prefix that a prompt has in common with a recent one, that of `request_id`, in tokens.

    `before` and `after` are the tokens that follow it in the recent prompt and in the new one.
    """

    num_tokens: int
    request_id: str
    before: list[int]
    after: list[int]

    def describe(self, num_cached_tokens: int, block_size: int, decode: Callable[[list[int]], str]) -> str:
        """Say where the prompts differ, and which common tokens were not found in the prefix cache."""
        if not self.num_tokens:
            return "no recent prompt begins with the same tokens"
        text = f"the first {self.num_tokens} tokens are those of {self.request_id}"
        if self.before:
            text += f", then {decode(self.before)!r} became {decode(self.after)!r}"
        num_lost = self.num_tokens // block_size * block_size - num_cached_tokens
        if num_lost > block_size:
            text += (
                f"; {num_lost} of them were not cached: evicted, not published yet, or behind the last snapshot of a "
                "recurrent state"
            )
        return text


class RecentPrompts:
    """The tokens of recent prompts, to say why a prompt was not found in the prefix cache. Mutable."""

    def __init__(self) -> None:
        self._prompts: deque[tuple[str, tuple[str | bytes, ...], npt.NDArray[np.int64]]] = deque(
            maxlen=_NUM_RECENT_PROMPTS
        )

    def add(self, request_id: str, scope: tuple[str | bytes, ...], token_ids: Sequence[int]) -> CommonPrefix:
        """Add a prompt, and compare it with the recent ones of the same `scope`, within which blocks are shared."""
        prompt = np.asarray(token_ids, np.int64)
        longest = CommonPrefix(0, "", [], [])
        for earlier_id, earlier_scope, earlier in reversed(self._prompts):
            size = min(len(earlier), len(prompt)) if earlier_scope == scope else 0
            differs = earlier[:size] != prompt[:size]
            num_common = int(differs.argmax()) if differs.any() else size
            if num_common > longest.num_tokens:
                before, after = (ids[num_common : num_common + _SHOWN_TOKENS].tolist() for ids in (earlier, prompt))
                longest = CommonPrefix(num_common, earlier_id, before, after)
        self._prompts.append((request_id, scope, prompt))
        return longest


@dataclass(slots=True)
class HttpRecord:
    """One HTTP request. `request_id` is the server's id; `client_id` is the client's own, which is not unique.

    `tenant` is the name of the API key's owner, never the key. Mutable.
    """

    request_id: str
    method: str
    path: str
    client: str | None = None
    """The address of the client, or of the proxy in front of the server."""
    client_id: str | None = None
    arrived_s: float = field(default_factory=time.perf_counter)
    ended_s: float | None = None
    route: str = "other"
    """The path pattern of the route, a label of low cardinality; `other` for an unknown path."""
    status: int | None = None
    """None if the client disconnected before the response started."""
    error_code: str | None = None
    tenant: str | None = None
    user: str | None = None
    """The end user, as the client names it."""
    is_stream: bool = False
    prompts: list[str | Sequence[int]] | None = None
    """The prompts, only if the server logs them."""
    recent_prompts: RecentPrompts | None = None
    """What prompts are compared with, only if the server logs prefixes."""
    prefixes: list[str] = field(default_factory=list)
    """What each prompt has in common with recent ones."""
    generations: list[GenerationRecord] = field(default_factory=list)
    embedding: EmbeddingRecord | None = None

    @property
    def is_api_call(self) -> bool:
        """Whether the request is neither a health probe nor a file of the chat page."""
        return self.route not in _PROBES and not self.route.startswith("/assets")

    @property
    def duration_s(self) -> float:
        """Seconds from its arrival to the end of its response, or until now."""
        return (time.perf_counter() if self.ended_s is None else self.ended_s) - self.arrived_s

    @property
    def ttft_s(self) -> float | None:
        """The least time to first token of its prompts."""
        return min(
            (generation.ttft_s for generation in self.generations if generation.ttft_s is not None), default=None
        )


def _elapsed_s(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s


_MAX_CLIENT_ID_CHARS = 128
_MAX_LOG_CHARS = 256
_FIELDS_IN_MESSAGE = ("client", "method", "path", "status")

_log = get_logger("aethermind.request")


class Observer:
    """ASGI middleware that observes requests. `state.record` of a request is its record, which inner layers fill.

    `X-Request-Id` of a response, for Anthropic's clients `Request-Id`, is the server's id. The client's own id is only
    repeated, as `X-Client-Request-Id` and in the log. Unexpected exceptions become a 500 here, so that they are
    counted, too. Records, and so the log, contain prompts only with `log_prompts`, and the places where prompts differ
    only with `log_prefixes`. With `tracing`, each request is a span.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        *,
        log_prompts: bool = False,
        log_prefixes: bool = False,
        tracing: Tracing | None = None,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._log_prompts = log_prompts
        self._recent_prompts = RecentPrompts() if log_prefixes else None
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = (scope.get("client") or (None,))[0]
        record = HttpRecord(f"req_{uuid.uuid4().hex}", scope["method"], scope["path"], client, _client_id(scope))
        record.prompts = [] if self._log_prompts else None
        record.recent_prompts = self._recent_prompts
        state = scope.setdefault("state", {})
        state["record"] = record
        state["request_id"] = record.request_id
        if scope["method"] == "HEAD":  # served as GET; the protocol sends the headers only
            scope = {**scope, "method": "GET"}

        async def send_observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = record.request_id
                if is_messages_path(record.path):
                    headers["Request-Id"] = record.request_id
                if record.client_id is not None:
                    headers["X-Client-Request-Id"] = record.client_id
                record.status = message["status"]
                record.route = getattr(scope.get("route"), "path", record.route)
                self._metrics.count_response(record)
            await send(message)

        self._metrics.begin_request()
        try:
            await self._app(scope, receive, send_observed)
        except Exception as error:
            failure = as_api_error(error)
            record.error_code = failure.code
            if record.status is not None:  # the response has started and is left incomplete
                raise
            await failure.response(scope["path"], record.request_id)(scope, receive, send_observed)
        finally:
            record.ended_s = time.perf_counter()
            self._metrics.end_request()
            if record.error_code in LIMIT_CODES:
                self._metrics.count_rejection(record.error_code)
            log_request(record)
            if self._tracing is not None and record.is_api_call:
                self._tracing.record(record, Headers(scope=scope))


def _client_id(scope: Scope) -> str | None:
    """The client's own id of its request; None if it has none, or one that cannot be logged safely."""
    given = (header_of(scope, b"x-request-id") or "")[:_MAX_CLIENT_ID_CHARS]
    return given if given and given.isascii() and given.isprintable() else None


def log_request(record: HttpRecord) -> None:
    """Log a finished request in one line, without its contents: `info` for API calls, `debug` for probes and assets."""
    level = logging.INFO if record.is_api_call else logging.DEBUG
    if _log.isEnabledFor(level):
        path, status = quoted(record.path[:_MAX_LOG_CHARS]), "gone" if record.status is None else record.status
        extra = {"fields": _fields(record), "in_message": _FIELDS_IN_MESSAGE}
        _log.log(level, "%s %s %s %s", record.client or "-", record.method, path, status, extra=extra)


def _fields(record: HttpRecord) -> dict[str, Any]:
    """The fields of the line in their order, without those that are None."""
    generations = record.generations
    fields: dict[str, Any] = {
        "client": record.client,
        "method": record.method,
        "path": record.path[:_MAX_LOG_CHARS],
        "status": record.status,
        "error": record.error_code,
    }
    if generations:
        fields |= {
            "model": generations[0].model,
            "stream": record.is_stream,
            "prompt_tokens": sum(generation.num_prompt_tokens for generation in generations),
            "cached_tokens": sum(generation.num_cached_tokens for generation in generations),
            "output_tokens": sum(generation.num_output_tokens for generation in generations),
            "preemptions": sum(generation.num_preemptions for generation in generations),
            "finish_reason": ",".join(
                dict.fromkeys(reason for generation in generations for reason in generation.finish_reasons)
            ),
        }
    if record.embedding is not None:
        fields |= {"model": record.embedding.model, "prompt_tokens": record.embedding.num_prompt_tokens}
    seconds = {"ttft": record.ttft_s, "duration": record.duration_s}
    fields |= {f"{name}_ms": None if value is None else round(value * 1e3, 3) for name, value in seconds.items()}
    fields |= {
        "tenant": record.tenant,
        "user": None if record.user is None else record.user[:_MAX_LOG_CHARS],
        "request_id": record.request_id,
        "client_request_id": record.client_id,
        "prompts": record.prompts or None,
        "prefix": "; ".join(record.prefixes) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}

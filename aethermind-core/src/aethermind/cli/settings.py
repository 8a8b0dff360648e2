"""The settings of the command line: dataclasses, each of which commands take as a whole.

Flags, keys of configuration files, environment variables and the table in docs/using/configuration.md are derived from
them. The options of an engine come from `EngineConfig`. A new setting is a field of one of these dataclasses, or of a
new one that is added to `SECTIONS`.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from aethermind import log
from aethermind.config.section import Check, Section, check_fields, one_of, setting, within
from aethermind.engine.config import EngineConfig
from aethermind.errors import InvalidArgumentError

__all__ = [
    "AccessOptions",
    "BenchSettings",
    "ChatSettings",
    "DeviceOptions",
    "ExecutionOptions",
    "KvCacheOptions",
    "LimitOptions",
    "LogLevel",
    "LogOptions",
    "ModelOptions",
    "ModelPath",
    "ModelPoolOptions",
    "OfflineEngineOptions",
    "OutputSettings",
    "ProcessOptions",
    "SAMPLING_DEFAULTS",
    "SECTIONS",
    "SamplingOptions",
    "ServedEngineOptions",
    "ServedModelName",
    "as_arguments",
]

SAMPLING_DEFAULTS: dict[str, Any] = {
    "max_tokens": 200,
    "temperature": 0.7,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Sampling parameters that apply where neither the caller nor the model's generation_config.json sets them."""

_NO_LIMIT = "no limit"
_SET_BY_COMMAND = "the command's"
_COUNT = within(1, None, "more than 0")
_SECONDS = Check(lambda value: value > 0, "a number of seconds above 0")
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s]+")


def _engine_option(name: str) -> Any:
    """Return a field for an engine's option, with the default and the `Setting` of `EngineConfig`."""
    engine_field = EngineConfig.__dataclass_fields__[name]
    return field(default=engine_field.default, metadata=engine_field.metadata)


def _sampling_option(name: str, help: str, **attributes: Any) -> Any:
    return setting(None, help, unset=f"the model's, or {SAMPLING_DEFAULTS[name]}", **attributes)


class _EngineOptions:
    """Base of dataclasses of engine options, which are checked when they are constructed."""

    __slots__ = ()

    def __post_init__(self) -> None:
        EngineConfig(**asdict(self))  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class ModelPath:
    """The model."""

    path: str | tuple[str, ...] = setting(
        "demo",
        "A model's name on the Hugging Face Hub (ORG/NAME[@REVISION][:QUANTIZATION]) or among the installed ones, a "
        "directory, or a .gguf file; for `serve` also a list of NAME=MODEL.",
        parameter="model",
        variable="AETHERMIND_MODEL",
    )


@dataclass(frozen=True, slots=True)
class DeviceOptions(_EngineOptions):
    """The device, and the numeric formats of computation and weights."""

    device: str = _engine_option("device")
    dtype: str = _engine_option("dtype")
    quantization: str | None = _engine_option("quantization")
    lm_head_quantization: str | None = _engine_option("lm_head_quantization")
    lm_head_dtype: str | None = _engine_option("lm_head_dtype")
    embedding_dtype: str | None = _engine_option("embedding_dtype")


@dataclass(frozen=True, slots=True)
class ModelOptions(DeviceOptions):
    """The device, and how weights, tokenizer and adapters are loaded."""

    load_format: str = _engine_option("load_format")
    weight_cache: float = _engine_option("weight_cache")
    tokenizer: str | None = _engine_option("tokenizer")
    adapters: tuple[str, ...] | None = _engine_option("adapters")
    max_loras: int | None = _engine_option("max_loras")
    max_lora_rank: int = _engine_option("max_lora_rank")


@dataclass(frozen=True, slots=True)
class KvCacheOptions(_EngineOptions):
    """Size and format of the KV cache."""

    max_model_len: int | None = _engine_option("max_model_len")
    num_kv_blocks: int | None = _engine_option("num_kv_blocks")
    memory: str | None = _engine_option("memory")
    gpu_memory_utilization: float = _engine_option("gpu_memory_utilization")
    block_size: int | None = _engine_option("block_size")
    kv_cache_layout: str = _engine_option("kv_cache_layout")
    kv_cache_dtype: str = _engine_option("kv_cache_dtype")


@dataclass(frozen=True, slots=True)
class OfflineEngineOptions(KvCacheOptions):
    """Options of an engine that answers one request at a time."""

    context_shift: bool = _engine_option("context_shift")
    num_keep: int = _engine_option("num_keep")
    kv_store: str | None = _engine_option("kv_store")
    num_threads: int | None = _engine_option("num_threads")
    max_num_batched_tokens: int = _engine_option("max_num_batched_tokens")
    fallback: str = _engine_option("fallback")
    deterministic: bool = _engine_option("deterministic")
    profiler_ranges: bool = _engine_option("profiler_ranges")


@dataclass(frozen=True, slots=True)
class ServedEngineOptions(KvCacheOptions):
    """Options of an engine that a server runs: memory, batching, scheduling and sessions."""

    context_shift: bool = _engine_option("context_shift")
    num_keep: int = _engine_option("num_keep")
    kv_store: str | None = _engine_option("kv_store")
    swap_space: float = _engine_option("swap_space")
    swap_device: str | None = _engine_option("swap_device")
    swap_threshold: float = _engine_option("swap_threshold")
    device_memory_threshold: float | None = _engine_option("device_memory_threshold")
    num_threads: int | None = _engine_option("num_threads")
    max_num_seqs: int = _engine_option("max_num_seqs")
    max_num_batched_tokens: int = _engine_option("max_num_batched_tokens")
    max_prefill_chunk: int | None = _engine_option("max_prefill_chunk")
    scheduling_policy: str = _engine_option("scheduling_policy")
    max_sessions: int = _engine_option("max_sessions")
    session_ttl: float = _engine_option("session_ttl")
    session_dir: str | None = _engine_option("session_dir")
    fallback: str = _engine_option("fallback")
    deterministic: bool = _engine_option("deterministic")
    prefill_stream: bool = _engine_option("prefill_stream")
    profiler_ranges: bool = _engine_option("profiler_ranges")


@dataclass(frozen=True, slots=True)
class ExecutionOptions(_EngineOptions):
    """Speculative decoding, and where steps run."""

    speculative_method: str | None = _engine_option("speculative_method")
    draft_model: str | None = _engine_option("draft_model")
    num_speculative_tokens: int = _engine_option("num_speculative_tokens")
    prompt_lookup_max: int = _engine_option("prompt_lookup_max")
    prompt_lookup_min: int = _engine_option("prompt_lookup_min")
    executor: str = _engine_option("executor")
    tensor_parallel_size: int = _engine_option("tensor_parallel_size")
    numa: str = _engine_option("numa")


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling parameters and stop conditions."""

    max_tokens: int | None = _sampling_option(
        "max_tokens",
        "Maximum number of tokens to generate; -1 continues to the end of the context.",
        flags=("--max-tokens", "-n"),
    )
    temperature: float | None = _sampling_option(
        "temperature",
        "Higher is more varied; 0 always takes the most likely token (greedy).",
        flags=("--temperature", "--temp"),
    )
    top_k: int | None = _sampling_option("top_k", "Sample from the k most likely tokens; 0 is off.")
    top_p: float | None = _sampling_option(
        "top_p", "Sample from the most likely tokens whose probabilities sum to this; 1 is off."
    )
    min_p: float | None = _sampling_option(
        "min_p", "Drop tokens less likely than this fraction of the most likely one; 0 is off."
    )
    repetition_penalty: float | None = _sampling_option(
        "repetition_penalty", "Above 1 discourages tokens that already occurred in prompt or answer."
    )
    presence_penalty: float | None = setting(
        None, "Subtracted from the logits of tokens that the answer already holds.", unset="0"
    )
    frequency_penalty: float | None = setting(
        None, "Subtracted once for each time that the answer holds the token.", unset="0"
    )
    seed: int | None = setting(
        None, "The same seed gives the same answer; --stats shows the seed of a run.", unset="random"
    )
    stop: tuple[str, ...] | None = setting(None, "End the answer before this text.", unset="none")
    ignore_eos: bool = setting(False, "Continue past the end-of-text token.")

    def __post_init__(self) -> None:
        self.given()

    def given(self, **more: Any) -> dict[str, Any]:
        """Return the parameters that are set, and `more`; raises SamplingParams' errors, before a model is loaded."""
        from aethermind.sampling.params import SamplingParams

        given = {name: value for name, value in {**asdict(self), **more}.items() if value is not None}
        SamplingParams(**given)
        return given


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Settings of a conversation."""

    system: str | None = setting(None, "System prompt.", unset="none")
    chat_template: str | None = setting(
        None,
        "A file with a Jinja chat template, or the name of one of the model's templates.",
        unset="the model's",
        metavar="FILE|NAME",
    )
    history: bool = setting(True, "On a terminal, keep what is typed for later chats.")


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """How answers are printed."""

    stream: bool = setting(True, "Print text as it is generated.")
    stats: bool | None = setting(None, "Print speed and seed on stderr.", unset="on a terminal")


@dataclass(frozen=True, slots=True)
class ServedModelName:
    """The name that clients of a server use for its model."""

    served_model_name: str | None = setting(None, "The model's name for clients.", unset="its path")


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """The address that a server listens on, its API keys, and the requests that it accepts."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8000, "Port to listen on; 0 takes a free one.", check=within(0, 65535, "from 0 to 65535"))
    api_key: tuple[str, ...] | None = setting(
        None,
        "API key that clients must send as a bearer token.",
        unset="no key needed",
        variable="AETHERMIND_API_KEY",
        is_secret=True,
    )
    api_keys_file: str | None = setting(
        None, "YAML, TOML or JSON file of API keys with names and quotas.", unset="none", metavar="PATH"
    )
    admin_key: str | None = setting(
        None,
        "Key that opens /admin, where limits of the running server are changed and models are loaded and unloaded.",
        unset="/admin is closed",
        variable="AETHERMIND_ADMIN_KEY",
        is_secret=True,
    )
    insecure_no_auth: bool = setting(
        False,
        "Allow listening on addresses other than this machine's own without an API key.",
        old_names=("allow_no_key",),
    )
    allowed_origins: tuple[str, ...] | None = setting(
        None,
        "Web page origins allowed to call the API (CORS), such as https://chat.example; * allows all.",
        unset="none",
    )
    strict_requests: bool = setting(False, "Refuse requests with unknown fields instead of ignoring those fields.")

    def __post_init__(self) -> None:
        check_fields(self)
        for origin in self.allowed_origins or ():
            if not _ORIGIN.fullmatch(origin):
                raise InvalidArgumentError(
                    f"allowed_origins has {origin!r} but takes a web page's scheme, host and port, such as "
                    "https://chat.example, or *."
                )


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Where engines run, and when their processes are restarted."""

    engine: str = setting(
        "process",
        "Where models run: process (an engine process for each model) or inprocess (in the server's process).",
        check=one_of("process", "inprocess"),
    )
    max_restarts: int = setting(
        5, "Maximum number of restarts of a crashed engine process in a row.", check=within(0, None, "0 or more")
    )
    engine_step_timeout: float = setting(
        600.0,
        "Seconds after which a step counts as hung and the engine process is killed; 0 is never.",
        check=within(0, None, "0 or more"),
        old_names=("stall_timeout",),
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class ModelPoolOptions:
    """Models on demand: loaded at their first request, and unloaded when they are idle."""

    models_dir: str | None = setting(
        None, "Serve every model in this directory, and load models on demand.", unset="none", metavar="DIRECTORY"
    )
    models_file: str | None = setting(
        None,
        "YAML, TOML or JSON file of models with options for each; they are loaded on demand.",
        unset="none",
        metavar="PATH",
    )
    models_max: int | None = setting(
        None,
        "Maximum number of models loaded at once; models are loaded on demand, and the least recently used is unloaded "
        "for another.",
        check=_COUNT,
        unset=_NO_LIMIT,
    )
    model_ttl: float | None = setting(
        None,
        "Seconds without a request after which a model is unloaded; models are loaded on demand.",
        check=_SECONDS,
        unset="never",
    )
    model_load_timeout: float = setting(
        600.0, "Seconds that a request may wait for its model to be loaded; then it gets 503.", check=_SECONDS
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def is_on_demand(self) -> bool:
        """Whether models are loaded at their first request, and not at start."""
        on_demand = (self.models_dir, self.models_file, self.models_max, self.model_ttl)
        return any(value is not None for value in on_demand)


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Limits of a server: requests and tokens at once, quotas of a key, sizes, timeouts."""

    max_concurrent_requests: int = setting(
        256,
        "Maximum number of requests open at once; further ones get 429.",
        check=_COUNT,
        old_names=("max_open_requests",),
    )
    max_queued_requests: int = setting(
        256, "Maximum number of open requests that wait for their first token.", check=_COUNT
    )
    max_queued_tokens: int = setting(
        1 << 20, "Maximum number of prompt tokens of requests that wait for their first token.", check=_COUNT
    )
    max_concurrency_per_key: int | None = setting(
        None, "Maximum number of requests that one API key has open at once.", check=_COUNT, unset=_NO_LIMIT
    )
    requests_per_minute: int | None = setting(
        None, "Maximum number of requests of one API key in any 60 seconds.", check=_COUNT, unset=_NO_LIMIT
    )
    tokens_per_minute: int | None = setting(
        None,
        "Maximum number of prompt and answer tokens of one API key in any 60 seconds.",
        check=_COUNT,
        unset=_NO_LIMIT,
    )
    max_body_bytes: int = setting(4 << 20, "Maximum size of a request body in bytes.", check=_COUNT)
    max_header_bytes: int = setting(64 << 10, "Maximum size of request headers in bytes.", check=_COUNT)
    max_json_depth: int = setting(64, "Maximum nesting of lists and objects in a request body.", check=_COUNT)
    request_timeout: float = setting(600.0, "Seconds that one answer may take.", check=_SECONDS)
    keep_alive_timeout: float = setting(
        60.0,
        "Seconds that a client may be silent while it sends a request, and that a connection may be idle.",
        check=_SECONDS,
        old_names=("idle_timeout",),
    )
    send_timeout: float = setting(
        30.0,
        "Seconds that a stream may be blocked by a client that does not read it.",
        check=_SECONDS,
        old_names=("slow_reader_timeout",),
    )
    drain_timeout: float = setting(
        30.0, "Seconds that open answers may take to finish when the server stops.", check=_SECONDS
    )
    max_stored_response_bytes: int | None = setting(
        None,
        "Store answers of /v1/responses in memory, so many bytes at most; they can be continued, read, and generated "
        "in background.",
        check=_COUNT,
        unset="nothing is stored",
    )
    stored_response_ttl: float = setting(
        3600.0, "Seconds after which a stored answer of /v1/responses is dropped.", check=_SECONDS
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Workload of `bench latency`, `bench serve` and `profile`."""

    prompt_tokens: int | None = setting(None, "Tokens in each prompt.", check=_COUNT, unset=_SET_BY_COMMAND)
    output_tokens: int | None = setting(None, "Tokens in each answer.", check=_COUNT, unset=_SET_BY_COMMAND)
    batch: int | None = setting(None, "Requests per batch.", check=_COUNT, unset=_SET_BY_COMMAND)
    repeat: int | None = setting(None, "Number of runs; medians are reported.", check=_COUNT, unset=_SET_BY_COMMAND)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class LogLevel:
    """The level from which on records are logged."""

    level: str | None = setting(
        None,
        "Log to stderr from this level on: debug, info, warning or error.",
        unset="info for `serve`, else warning",
        parameter="log_level",
        variable="AETHERMIND_LOG",
    )

    def __post_init__(self) -> None:
        if self.level is not None and self.level.lower() not in log.LEVELS:
            raise InvalidArgumentError(f"log level should be one of {', '.join(log.LEVELS)}, got {self.level!r}.")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The log and the traces of a server."""

    format: str = setting(
        "text", "Format of the log of `serve`: text, or json (an object per line).", parameter="log_format"
    )
    prompts: bool = setting(False, "Write prompts into the log of `serve`.", parameter="log_prompts")
    prefixes: bool = setting(
        False,
        "Write into the log of `serve` where a prompt first differs from the most similar of the last 64, and which of "
        "its tokens the prefix cache no longer had. The log then has a few words of prompts.",
        parameter="log_prefixes",
    )
    otlp_endpoint: str | None = setting(
        None,
        "URL to which `serve` sends a trace of each request (OTLP over HTTP), such as http://127.0.0.1:4318/v1/traces.",
        unset="off",
    )

    def __post_init__(self) -> None:
        if self.format not in log.FORMATS:
            raise InvalidArgumentError(f"log format should be one of {', '.join(log.FORMATS)}, got {self.format!r}.")


SECTIONS = (
    Section("model", (ModelPath, ModelOptions)),
    Section("engine", (ServedEngineOptions, ExecutionOptions)),
    Section("sampling", (SamplingOptions,)),
    Section("chat", (ChatSettings,)),
    Section("output", (OutputSettings,)),
    Section("server", (ServedModelName, AccessOptions, ModelPoolOptions, ProcessOptions, LimitOptions)),
    Section("bench", (BenchSettings,)),
    Section("log", (LogLevel, LogOptions)),
)


def as_arguments(*groups: Any) -> dict[str, Any]:
    """Return the fields of settings dataclasses by name, as arguments of `LLM`."""
    return {name: value for group in groups for name, value in asdict(group).items()}

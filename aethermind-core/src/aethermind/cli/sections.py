"""What can be set, section by section. A new component adds its dataclass here and a line to the table."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from aethermind import log
from aethermind.config import Section, setting
from aethermind.engine.config import EngineConfig, named_adapters
from aethermind.errors import InvalidArgumentError
from aethermind.sampling.params import SamplingParams

__all__ = [
    "BenchSettings",
    "ChatSettings",
    "EngineSettings",
    "LogSettings",
    "ModelSettings",
    "OutputSettings",
    "SECTIONS",
    "SamplingSettings",
    "ServerSettings",
]

_OF_THE_MODEL = "the model's, else the command's"
_OF_THE_COMMAND = "the command's"
_UNBOUNDED = "no limit"
_BY_MEMORY = "what memory allows"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model, where, and in which numbers."""

    path: str | tuple[str, ...] = setting(
        "demo",
        "a model directory, a .gguf file, or the name of an installed model; for `serve` also a list of NAME=MODEL",
        parameter="model",
        variable="AETHERMIND_MODEL",
    )
    device: str = setting("auto", "auto, cpu, numpy, cuda:0, …")
    dtype: str = setting("auto", "auto (the checkpoint's), float32, bfloat16 or float16")
    quantization: str | None = setting(
        None, "weight format to convert to while loading: int8, int4, int2, int1, …, or dense", unset="the checkpoint's"
    )
    lm_head: str | None = setting(
        None, "weight format of the output matrix (lm_head)", unset="as quantization, but at least int8"
    )
    load_format: str = setting("auto", "auto reads the weights; dummy makes random ones")
    weight_cache: float = setting(16.0, "GiB of disk for packed weights, so that later starts are fast; 0 for none")
    tokenizer: str | None = setting(
        None,
        "another tokenizer: a directory, a tokenizer.json, a .gguf file, or the name of a model",
        unset="the model's",
    )
    adapters: tuple[str, ...] | None = setting(None, "LoRA adapters, each PATH or NAME=PATH", unset="none")

    def __post_init__(self) -> None:
        EngineConfig(
            quantization=self.quantization,
            lm_head=self.lm_head,
            load_format=self.load_format,
            weight_cache=self.weight_cache,
            tokenizer=self.tokenizer,
            adapters=None if self.adapters is None else named_adapters(self.adapters),
        )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits of context, memory and threads."""

    max_model_len: int | None = setting(
        None, "longest context, prompt and answer together, in tokens", unset="the model's, or what memory allows"
    )
    num_kv_blocks: int | None = setting(None, "number of blocks in the KV cache", unset=_BY_MEMORY)
    gpu_memory_utilization: float = setting(
        0.9, "fraction of a GPU's memory that may be in use, KV cache included; ignored if num_kv_blocks is set"
    )
    block_size: int = setting(16, "tokens per block of the KV cache")
    kv_cache_dtype: str = setting("auto", "what the KV cache stores: auto (the dtype of the computation), int8 or fp8")
    swap_space: float = setting(
        0.0, "GiB of host memory to which preempted requests are swapped out when the KV cache is full"
    )
    kv_store: str | None = setting(
        None,
        "store to which the prefix cache is offloaded: disk:/path, redis://host:6379/0, host:2GiB, or a plugin's",
        unset="none",
    )
    num_threads: int | None = setting(
        None,
        "worker threads of a device that computes on the CPU",
        unset="the device's choice",
        variable="AETHERMIND_NUM_THREADS",
    )
    max_num_seqs: int = setting(64, "most requests that run at once")
    max_num_batched_tokens: int = setting(512, "most tokens per step; a longer prompt is computed in chunks")
    max_sessions: int = setting(256, "most conversations whose KV cache is kept for the next turn")
    session_ttl: float = setting(600.0, "seconds for which it is kept after a turn")
    scheduling_policy: str = setting(
        "fair", "which request goes first: fair, fcfs, priority, shortest, deadline, or a plugin's"
    )
    fallback: str = setting(
        "warn", "operators for which the device has no kernel: error, or warn or allow and use the slow reference"
    )
    deterministic: bool = setting(False, "refuse kernels whose results depend on what else is in the batch")
    speculative_method: str | None = setting(
        None, "speculative decoding: prompt_lookup, draft, or a plugin's method", unset="off"
    )
    draft_model: str | None = setting(None, "the smaller model for `draft`, with the same vocabulary", unset="none")
    num_speculative_tokens: int = setting(8, "most draft tokens per request and step; fewer if they do not pay")
    prompt_lookup_max: int = setting(4, "longest n-gram that `prompt_lookup` searches for")
    prompt_lookup_min: int = setting(2, "shortest n-gram that `prompt_lookup` searches for")
    executor: str = setting(
        "auto",
        "where steps run: auto, inline (the engine's process), multiproc (a process per rank), or a plugin's",
    )
    tensor_parallel_size: int = setting(1, "number of ranks that split every layer between them")

    def __post_init__(self) -> None:
        EngineConfig(**asdict(self))


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How tokens are chosen, and when an answer ends."""

    max_tokens: int | None = setting(
        None, "most tokens to generate; -1 continues to the end of the context", unset=_OF_THE_MODEL
    )
    temperature: float | None = setting(
        None, "higher is more varied; 0 always takes the most likely token (greedy)", unset=_OF_THE_MODEL
    )
    top_k: int | None = setting(None, "sample from the k most likely tokens; 0 is off", unset=_OF_THE_MODEL)
    top_p: float | None = setting(
        None, "sample from the most likely tokens whose probabilities sum to this; 1 is off", unset=_OF_THE_MODEL
    )
    min_p: float | None = setting(
        None, "drop tokens less likely than this fraction of the most likely one; 0 is off", unset=_OF_THE_MODEL
    )
    repetition_penalty: float | None = setting(
        None, "above 1 discourages tokens that already occurred in prompt or answer", unset=_OF_THE_MODEL
    )
    presence_penalty: float | None = setting(
        None, "subtracted from the logits of tokens that the answer already holds", unset="0"
    )
    frequency_penalty: float | None = setting(
        None, "subtracted once for each time that the answer holds the token", unset="0"
    )
    seed: int | None = setting(None, "the same seed gives the same answer", unset="random")
    stop: tuple[str, ...] | None = setting(None, "texts before which an answer ends", unset="none")
    ignore_eos: bool = setting(False, "continue past the end-of-text token")

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        SamplingParams(**given)


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What a conversation begins with."""

    system: str | None = setting(None, "system prompt", unset="none")
    chat_template: str | None = setting(
        None, "a file with a Jinja chat template, or the name of one of the model's templates", unset="the model's"
    )
    history: bool = setting(True, "keep what is typed on a terminal for later chats")


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """How answers are printed."""

    stream: bool = setting(True, "print text as it is generated")
    stats: bool | None = setting(None, "print speed and seed on stderr", unset="on a terminal")


_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s]+")
_MORE_THAN_0 = (
    *("max_open_requests", "max_queued_requests", "max_queued_tokens"),
    *("max_concurrency_per_key", "requests_per_minute", "tokens_per_minute"),
    *("max_body_bytes", "max_header_bytes", "max_json_depth"),
    *("request_timeout", "idle_timeout", "slow_reader_timeout", "drain_timeout"),
)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where `serve` listens, which clients it admits, and its limits."""

    host: str = setting("127.0.0.1", "the address to listen on")
    port: int = setting(8000, "the port; 0 takes a free one")
    served_model_name: str | None = setting(None, "the model's name for clients", unset="its path")
    api_key: tuple[str, ...] | None = setting(
        None,
        "API key that clients must send as a bearer token, or a list of keys",
        unset="no key needed",
        variable="AETHERMIND_API_KEY",
        is_secret=True,
    )
    api_keys_file: str | None = setting(None, "YAML, TOML or JSON file of API keys with names and quotas", unset="none")
    allow_no_key: bool = setting(False, "allow listening on other addresses than this machine's own without an API key")
    allowed_origins: tuple[str, ...] | None = setting(
        None,
        "web page origins allowed to call the API (CORS), such as https://chat.example; * allows all",
        unset="none",
    )
    strict_requests: bool = setting(False, "refuse requests with unknown fields instead of ignoring those")
    engine: str = setting("process", "where models run: process (one for each model) or inprocess (in the server's)")
    max_restarts: int = setting(5, "how often in a row a crashed engine process is restarted")
    stall_timeout: float = setting(
        600.0, "seconds after which a step counts as hung and the engine process is killed; 0 is never"
    )
    max_open_requests: int = setting(256, "most requests open at once; further ones get 429")
    max_queued_requests: int = setting(256, "most of them that wait for their first token")
    max_queued_tokens: int = setting(1 << 20, "most prompt tokens of requests that wait")
    max_concurrency_per_key: int | None = setting(
        None, "most requests that one API key has open at once", unset=_UNBOUNDED
    )
    requests_per_minute: int | None = setting(None, "most requests of one API key in any 60 seconds", unset=_UNBOUNDED)
    tokens_per_minute: int | None = setting(
        None, "most prompt and answer tokens of one API key in any 60 seconds", unset=_UNBOUNDED
    )
    max_body_bytes: int = setting(4 << 20, "largest request body in bytes")
    max_header_bytes: int = setting(64 << 10, "largest request headers in bytes")
    max_json_depth: int = setting(64, "deepest nesting of lists and objects in a request body")
    request_timeout: float = setting(600.0, "seconds that one answer may take")
    idle_timeout: float = setting(
        60.0, "seconds that a client may be silent while it sends a request, and that a connection may be idle"
    )
    slow_reader_timeout: float = setting(30.0, "seconds that a stream may be blocked by a client that does not read it")
    drain_timeout: float = setting(30.0, "seconds that open answers may take to finish when the server stops")

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise InvalidArgumentError(f"port should be from 0 to 65535, got {self.port}.")
        if self.engine not in ("process", "inprocess"):
            raise InvalidArgumentError(f"engine should be process or inprocess, got {self.engine!r}.")
        for origin in self.allowed_origins or ():
            if not _ORIGIN.fullmatch(origin):
                raise InvalidArgumentError(
                    f"allowed_origins has {origin!r} but takes a web page's scheme, host and port, such as "
                    "https://chat.example, or *."
                )
        for name in ("max_restarts", "stall_timeout"):
            if not getattr(self, name) >= 0:  # nan is neither
                raise InvalidArgumentError(f"{name} should be 0 or more, got {getattr(self, name)}.")
        for name in _MORE_THAN_0:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidArgumentError(f"{name} should be more than 0, got {value}.")


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What `bench latency` and `profile` run."""

    prompt_tokens: int | None = setting(None, "tokens in each prompt", unset=_OF_THE_COMMAND)
    output_tokens: int | None = setting(None, "tokens in each answer", unset=_OF_THE_COMMAND)
    batch: int | None = setting(None, "requests per batch", unset=_OF_THE_COMMAND)
    repeat: int | None = setting(None, "number of runs; medians are reported", unset=_OF_THE_COMMAND)

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < 1:
                raise InvalidArgumentError(f"{name} should be a positive integer, got {value!r}.")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log and the traces."""

    level: str | None = setting(
        None,
        "debug, info, warning or error",
        unset="info for `serve`, else warning",
        parameter="log_level",
        variable="AETHERMIND_LOG",
    )
    format: str = setting(
        "text", "format of the log of `serve`: text, or json (an object per line)", parameter="log_format"
    )
    prompts: bool = setting(False, "whether `serve` writes prompts into its log", parameter="log_prompts")
    otlp_endpoint: str | None = setting(
        None,
        "URL to which `serve` sends traces, such as http://127.0.0.1:4318/v1/traces",
        unset="off",
        parameter="otlp_endpoint",
    )

    def __post_init__(self) -> None:
        if self.level is not None and self.level.lower() not in log.LEVELS:
            raise InvalidArgumentError(f"log level should be one of {', '.join(log.LEVELS)}, got {self.level!r}.")
        if self.format not in log.FORMATS:
            raise InvalidArgumentError(f"log format should be one of {', '.join(log.FORMATS)}, got {self.format!r}.")


SECTIONS = (
    Section("model", ModelSettings),
    Section("engine", EngineSettings),
    Section("sampling", SamplingSettings),
    Section("chat", ChatSettings),
    Section("output", OutputSettings),
    Section("server", ServerSettings),
    Section("bench", BenchSettings),
    Section("log", LogSettings),
)

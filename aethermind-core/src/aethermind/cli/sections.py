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
_UNBOUNDED = "no bound"
_BY_MEMORY = "as many as memory allows, for the context"


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
    quantization: str | None = setting(None, "weight format to convert to on loading", unset="the checkpoint's")
    lm_head: str | None = setting(
        None, "that of the matrix that makes logits", unset="as quantization, of at least int8"
    )
    load_format: str = setting("auto", "auto reads the weights, dummy makes random ones")
    weight_cache: float = setting(16.0, "GiB on disk for packed weights, which later starts map; 0 for none")
    tokenizer: str | None = setting(
        None, "another tokenizer: a directory, tokenizer.json, .gguf, or a model's name", unset="the model's"
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

    max_model_len: int | None = setting(None, "longest context in tokens", unset="the model's, or what memory allows")
    num_kv_blocks: int | None = setting(None, "blocks of the KV cache", unset=_BY_MEMORY)
    gpu_memory_utilization: float = setting(
        0.9, "part of a GPU's memory that may be in use with the KV cache, unless num_kv_blocks is set"
    )
    block_size: int = setting(16, "tokens in a block of the KV cache")
    kv_cache_dtype: str = setting("auto", "what keys and values are stored in: auto (as computed), int8 or fp8")
    swap_space: float = setting(0.0, "GiB of host memory for requests that give way in a full KV cache")
    kv_store: str | None = setting(
        None,
        "where engines share keys and values: disk:/path, redis://host:6379/0, host:2GiB",
        unset="nowhere",
    )
    num_threads: int | None = setting(
        None,
        "worker threads of the device",
        unset="the device's choice",
        variable="AETHERMIND_NUM_THREADS",
    )
    max_num_seqs: int = setting(64, "the most requests running at once")
    max_num_batched_tokens: int = setting(512, "the most tokens in a step; also the longest piece of a prompt")
    max_sessions: int = setting(256, "conversations whose keys and values are kept for their next turn")
    session_ttl: float = setting(600.0, "seconds that they are kept after a turn")
    scheduling_policy: str = setting("fair", "who goes first: fair, fcfs, priority, shortest, deadline, or a plugin's")
    fallback: str = setting("warn", "operators without a kernel of the device: error, warn or allow")
    deterministic: bool = setting(False, "refuse kernels whose results depend on the batch")
    speculative_method: str | None = setting(
        None, "what drafts tokens for the model to check: prompt_lookup, draft, or a plugin's", unset="nothing"
    )
    draft_model: str | None = setting(None, "the smaller model of `draft`", unset="none")
    num_speculative_tokens: int = setting(8, "the most drafts of a request in a step; fewer where they do not pay")
    prompt_lookup_max: int = setting(4, "tokens that `prompt_lookup` looks for first")
    prompt_lookup_min: int = setting(2, "the fewest that it looks for")
    executor: str = setting(
        "auto",
        "where steps run: inline (the engine's process), multiproc (several), auto, or a plugin's",
    )
    tensor_parallel_size: int = setting(1, "ranks that share the model, each a part of every layer")

    def __post_init__(self) -> None:
        EngineConfig(**asdict(self))


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How tokens are chosen, and when an answer ends."""

    max_tokens: int | None = setting(
        None, "the most tokens to write; -1 goes on to the end of the context", unset=_OF_THE_MODEL
    )
    temperature: float | None = setting(
        None, "divides the logits; 0 always takes the likeliest token", unset=_OF_THE_MODEL
    )
    top_k: int | None = setting(None, "choose among the k likeliest tokens; 0 is off", unset=_OF_THE_MODEL)
    top_p: float | None = setting(
        None, "choose among the likeliest tokens of this total probability", unset=_OF_THE_MODEL
    )
    min_p: float | None = setting(None, "drop tokens below this fraction of the likeliest one", unset=_OF_THE_MODEL)
    repetition_penalty: float | None = setting(None, "above 1 discourages tokens already there", unset=_OF_THE_MODEL)
    presence_penalty: float | None = setting(None, "subtracted from the logits of tokens in the answer", unset="0")
    frequency_penalty: float | None = setting(None, "the same once for each time that they are there", unset="0")
    seed: int | None = setting(None, "repeats a run", unset="random")
    stop: tuple[str, ...] | None = setting(None, "texts before which an answer ends", unset="none")
    ignore_eos: bool = setting(False, "go on past the end-of-text token")

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        SamplingParams(**given)


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What a conversation begins with."""

    system: str | None = setting(None, "what the model is told before a conversation", unset="nothing")
    chat_template: str | None = setting(
        None, "a file with a Jinja template, or the name of one of the model's", unset="the model's"
    )
    history: bool = setting(True, "keep what is typed on a terminal for the next chat")


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """What is printed of an answer."""

    stream: bool = setting(True, "print text as it is written")
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
    """Where `serve` listens, who may come in, and how many at once."""

    host: str = setting("127.0.0.1", "the address to listen on")
    port: int = setting(8000, "the port; 0 takes a free one")
    served_model_name: str | None = setting(None, "what clients call the model", unset="its path")
    api_key: tuple[str, ...] | None = setting(
        None,
        "what clients have to send as a bearer token; some, where several may come in",
        unset="everyone may come in",
        variable="AETHERMIND_API_KEY",
        is_secret=True,
    )
    api_keys_file: str | None = setting(None, "a file of keys with names and quotas", unset="none")
    allow_no_key: bool = setting(False, "listen beyond this machine without a key")
    allowed_origins: tuple[str, ...] | None = setting(
        None, "web pages that may ask besides its own, such as https://chat.example, or * for all", unset="none"
    )
    strict_requests: bool = setting(False, "refuse requests with unknown fields, which are ignored otherwise")
    engine: str = setting("process", "where models run: each in a process of its own, or inprocess, in the server's")
    max_restarts: int = setting(5, "how often in a row an engine's process that ended is started again")
    stall_timeout: float = setting(600.0, "seconds that a step may take before the engine's process is ended; 0 is any")
    max_open_requests: int = setting(256, "answers open at once; who comes after is told to try again")
    max_queued_requests: int = setting(256, "of those, answers that have not begun")
    max_queued_tokens: int = setting(1 << 20, "prompt tokens of answers that have not begun")
    max_concurrency_per_key: int | None = setting(None, "answers that one key has open at once", unset=_UNBOUNDED)
    requests_per_minute: int | None = setting(None, "requests of one key in 60 seconds", unset=_UNBOUNDED)
    tokens_per_minute: int | None = setting(None, "tokens that one key reads and writes in 60 s", unset=_UNBOUNDED)
    max_body_bytes: int = setting(4 << 20, "bytes of a request's body")
    max_header_bytes: int = setting(64 << 10, "bytes of a request's headers")
    max_json_depth: int = setting(64, "lists and objects inside each other in a body")
    request_timeout: float = setting(600.0, "seconds until an answer has to be finished")
    idle_timeout: float = setting(60.0, "seconds that a client may be silent while it sends a request")
    slow_reader_timeout: float = setting(30.0, "seconds that a client may take to read what its stream holds")
    drain_timeout: float = setting(30.0, "seconds for open answers when told to stop")

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
    batch: int | None = setting(None, "requests at a time", unset=_OF_THE_COMMAND)
    repeat: int | None = setting(None, "runs, of which medians are reported", unset=_OF_THE_COMMAND)

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < 1:
                raise InvalidArgumentError(f"{name} should be a positive integer, got {value!r}.")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is told of the inside."""

    level: str | None = setting(
        None,
        "debug, info, warning or error",
        unset="info for `serve`, else warning",
        parameter="log_level",
        variable="AETHERMIND_LOG",
    )
    format: str = setting("text", "how `serve` writes it: text, or json", parameter="log_format")
    prompts: bool = setting(False, "whether `serve` writes down what it was asked", parameter="log_prompts")
    otlp_endpoint: str | None = setting(
        None,
        "where `serve` sends traces, such as http://127.0.0.1:4318/v1/traces",
        unset="nowhere",
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

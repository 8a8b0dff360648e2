"""What the caller of an engine decides: device, numbers and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from aethermind.cache.stores.address import StoreAddress
from aethermind.config.suggest import did_you_mean
from aethermind.errors import InvalidArgumentError
from aethermind.python_api import document_fields

__all__ = ["EngineConfig", "EngineOptions", "MAX_SPECULATIVE_TOKENS", "named_adapters"]

MAX_SPECULATIVE_TOKENS = 32
"""The most drafts of one request in a step."""


class EngineOptions(TypedDict, total=False):
    """The options of an engine as `LLM` takes them; `EngineConfig` has their defaults and checks them."""

    device: str
    """`auto`, or a device such as `cpu` or `cuda:0`."""
    dtype: str
    """What the model computes in: `auto` (the checkpoint's), `float32`, `bfloat16` or `float16`."""
    quantization: str | None
    """Convert the weight matrices to this format on loading: `int8`, `int4`, … None keeps the checkpoint's."""
    lm_head: str | None
    """The weight format of the output matrix (lm_head). None: as `quantization`, but at least int8."""
    load_format: str
    """`auto` reads the weights, `dummy` makes random ones."""
    weight_cache: float
    """GiB of disk in the user's cache directory for packed weights, so that later starts are fast; 0 for none."""
    tokenizer: str | Path | None
    """Another tokenizer than the model's: a directory, a tokenizer.json, a .gguf file or the name of a model."""
    adapters: Mapping[str, str | Path] | Iterable[str | Path] | None
    """LoRA adapters: a mapping from the names that requests use to directories in PEFT's format, or a list of NAME=PATH
    and of paths whose last part is the name."""

    max_model_len: int | None
    """The longest context, prompt and answer together, in tokens. None: the model's, or what memory allows."""
    num_kv_blocks: int | None
    """The number of blocks in the KV cache, which all requests share. None: what memory allows."""
    gpu_memory_utilization: float
    """The fraction of a GPU's memory that may be in use, KV cache and other processes included. Without effect if
    `num_kv_blocks` is set, or if the device computes in host memory."""
    block_size: int
    """Tokens per block of the KV cache."""
    kv_cache_dtype: str
    """What the KV cache stores: `auto` (the dtype of the computation), or `int8` or `fp8` (e4m3) with one scale per
    head and token, in about half of bfloat16's memory."""
    swap_space: float
    """GiB of host memory to which preempted requests are swapped out when the KV cache is full."""
    enable_prefix_caching: bool
    """Prefix caching: reuse computed keys and values for prompts with the same prefix."""
    kv_store: str | None
    """A store to which the prefix cache is offloaded, where other engines find it: `disk:/path?size=10GiB`,
    `redis://host:6379/0`, `host:2GiB` or a plugin's. Closing the engine writes what the store lacks."""
    max_sessions: int
    """The most conversations (`RequestOptions.session`) whose keys and values are kept for the next turn."""
    session_ttl: float
    """Seconds for which they are kept after a turn."""

    num_threads: int | None
    """Worker threads of a device that computes on the CPU. None: the device's choice."""
    seed: int
    """Seeds requests without a seed of their own, and the weights of `load_format="dummy"`."""
    max_num_seqs: int
    """The most requests that run at once."""
    max_num_batched_tokens: int
    """The most tokens per step; a longer prompt is computed in chunks."""
    max_new_tokens: int | None
    """The most tokens of any answer, whatever its request asks for."""
    scheduling_policy: str
    """Which request goes first when not all can run: `fair`, `fcfs`, `priority`, `shortest`, `deadline` or a
    plugin's."""

    fallback: str
    """Operators for which the device has no kernel: `error`, or `warn` or `allow` and use the slow reference."""
    deterministic: bool
    """Refuse kernels with which a request's tokens could depend on the rest of the batch."""

    speculative_method: str | None
    """Speculative decoding: `prompt_lookup`, `draft` or a plugin's method. The answers are the same as without."""
    draft_model: str | Path | None
    """The smaller model for `draft`, with the same vocabulary."""
    num_speculative_tokens: int
    """The most draft tokens per request and step; fewer if they do not pay."""
    prompt_lookup_max: int
    """The longest n-gram that `prompt_lookup` searches for."""
    prompt_lookup_min: int
    """The shortest n-gram that `prompt_lookup` searches for."""

    executor: str
    """Where steps run: `auto`, `inline` (the engine's process), `multiproc` (a process per rank), or a plugin's."""
    tensor_parallel_size: int
    """The number of ranks that split every layer between them."""


def _is_number(value: object, *kinds: type) -> bool:
    """Whether a value is of one of these kinds; True and False, which are integers to Python, are none here."""
    return isinstance(value, kinds) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class _Check:
    """What a value should be, and the words for it."""

    fits: Callable[[Any], bool]
    words: str


def _one_of(*choices: str) -> _Check:
    return _Check(lambda value: value in choices, f"one of {', '.join(choices)}")


def _name(words: str) -> _Check:
    return _Check(lambda value: isinstance(value, str), words)


def _number(fits: Callable[[float], bool], words: str) -> _Check:
    return _Check(lambda value: _is_number(value, int, float) and fits(value), words)


_COUNT = _Check(lambda value: _is_number(value, int) and 0 < value < 2**40, "a positive integer")
_FLAG = _Check(lambda value: isinstance(value, bool), "True or False")


def _option(default: Any, check: _Check) -> Any:
    """A field that takes what fits, and None where that is the default."""
    return field(default=default, metadata={"check": check})


_FOREIGN_OPTIONS = {
    "cpu_offload_gb": "weights stay on the device; leave it out",
    "device_map": "give device",
    "enforce_eager": "plans are always compiled; leave it out",
    "load_in_4bit": "give quantization='int4'",
    "load_in_8bit": "give quantization='int8'",
    "n_ctx": "give max_model_len",
    "n_gpu_layers": "a model runs on one device as a whole; give device",
    "n_threads": "give num_threads",
    "revision": "give the path of the download that you mean",
    "tokenizer_mode": "the tokenizer's files say what it is; leave it out",
    "torch_dtype": "give dtype",
    "trust_remote_code": "code that comes with a model is never run; leave it out",
}
"""What vLLM, llama-cpp-python and transformers take, and what to do instead."""

_OF_SPECULATION = {
    "draft_model": "draft",
    "num_speculative_tokens": "prompt_lookup",
    "prompt_lookup_max": "prompt_lookup",
    "prompt_lookup_min": "prompt_lookup",
}
"""Options that say nothing without a method, each with one that takes it."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The options of one engine, checked; `EngineOptions` says what each of them means.

    Names of devices, formats, policies, proposers and executors are looked up later, when a model is planned.

    Raises InvalidArgumentError for values out of range.
    """

    device: str = _option("auto", _name("a name, such as auto"))
    dtype: str = _option("auto", _name("a name, such as auto"))
    quantization: str | None = _option(None, _name("the name of a weight format"))
    lm_head: str | None = _option(None, _name("the name of a weight format"))
    load_format: str = _option("auto", _one_of("auto", "dummy"))
    weight_cache: float = _option(16.0, _number(lambda value: 0 <= value < 2**20, "GiB of disk space, 0 for none"))
    tokenizer: str | None = _option(None, _name("the name of a model, or the path of a tokenizer"))
    adapters: Mapping[str, str] | None = _option(None, _Check(lambda value: isinstance(value, dict), "a mapping"))
    max_model_len: int | None = _option(None, _COUNT)
    num_kv_blocks: int | None = _option(None, _COUNT)
    gpu_memory_utilization: float = _option(0.9, _number(lambda value: 0 < value <= 1, "more than 0 and at most 1"))
    block_size: int = _option(16, _COUNT)
    kv_cache_dtype: str = _option("auto", _one_of("auto", "float32", "bfloat16", "float16", "int8", "fp8", "fp8_e4m3"))
    swap_space: float = _option(0.0, _number(lambda value: 0 <= value < 2**20, "GiB of host memory, 0 for none"))
    num_threads: int | None = _option(None, _COUNT)
    seed: int = _option(0, _Check(lambda value: _is_number(value, int), "an integer"))
    max_num_seqs: int = _option(64, _COUNT)
    max_num_batched_tokens: int = _option(512, _COUNT)
    max_new_tokens: int | None = _option(None, _COUNT)
    scheduling_policy: str = _option("fair", _name("a name, such as fair"))
    enable_prefix_caching: bool = _option(True, _FLAG)
    max_sessions: int = _option(256, _COUNT)
    session_ttl: float = _option(600.0, _number(lambda value: 0 < value < 2**40, "seconds, more than 0"))
    kv_store: str | None = _option(None, _name("the address of a store, such as disk:/path"))
    fallback: str = _option("warn", _one_of("error", "warn", "allow"))
    deterministic: bool = _option(False, _FLAG)
    speculative_method: str | None = _option(None, _name("the name of a proposer, such as prompt_lookup"))
    draft_model: str | None = _option(None, _name("the name of a model or its directory"))
    num_speculative_tokens: int = _option(8, _COUNT)
    prompt_lookup_max: int = _option(4, _COUNT)
    prompt_lookup_min: int = _option(2, _COUNT)
    executor: str = _option("auto", _name("a name, such as auto"))
    tensor_parallel_size: int = _option(1, _COUNT)

    def __post_init__(self) -> None:
        if self.adapters is not None:
            object.__setattr__(self, "adapters", named_adapters(self.adapters))
        for option in fields(self):
            value, check = getattr(self, option.name), option.metadata["check"]
            if not check.fits(value) and not (value is None and option.default is None):
                raise InvalidArgumentError(f"{option.name} should be {check.words}, got {value!r}.")
        self._check_store()
        self._check_speculation()

    @classmethod
    def of(cls, **options: Unpack[EngineOptions]) -> EngineConfig:
        """The configuration with these options; InvalidArgumentError also for one that does not exist."""
        if unknown := sorted(options.keys() - EngineOptions.__annotations__.keys()):
            advice = _FOREIGN_OPTIONS.get(unknown[0])
            advice = f": {advice}." if advice else did_you_mean(unknown[0], EngineOptions.__annotations__)
            raise InvalidArgumentError(f"An engine has no option {unknown[0]!r}{advice}")
        named: dict[str, Any] = {
            name: str(value) if isinstance(value, Path) else value for name, value in options.items()
        }
        return cls(**named)

    @property
    def executor_name(self) -> str:
        """The executor that `auto` is."""
        if self.executor != "auto":
            return self.executor
        return "inline" if self.tensor_parallel_size == 1 else "multiproc"

    def without_speculation(self) -> EngineConfig:
        """The same, with nothing that drafts tokens."""
        unset: dict[str, Any] = {
            option.name: option.default for option in fields(self) if option.name in _OF_SPECULATION
        }
        return replace(self, speculative_method=None, **unset)

    def _check_store(self) -> None:
        if self.kv_store is None:
            return
        StoreAddress.parse(self.kv_store)
        if not self.enable_prefix_caching:
            raise InvalidArgumentError("A KV store needs enable_prefix_caching: what it has is found by its beginning.")

    def _check_speculation(self) -> None:
        if self.num_speculative_tokens > MAX_SPECULATIVE_TOKENS:
            raise InvalidArgumentError(
                f"num_speculative_tokens should be at most {MAX_SPECULATIVE_TOKENS}, got {self.num_speculative_tokens}."
            )
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise InvalidArgumentError(
                f"prompt_lookup_min is {self.prompt_lookup_min} but prompt_lookup_max is {self.prompt_lookup_max}; "
                "lower the one or raise the other."
            )
        for option in fields(self):
            is_idle = self.speculative_method is None and option.name in _OF_SPECULATION
            if is_idle and getattr(self, option.name) != option.default:
                raise InvalidArgumentError(
                    f"{option.name} is given and speculative_method is not; set that to "
                    f"{_OF_SPECULATION[option.name]}, or leave both out."
                )


document_fields(EngineOptions, {option.name: option.default for option in fields(EngineConfig)}, title="Options")


def named_adapters(given: Any) -> dict[str, str]:
    """Paths of adapters by name, from a mapping or from a list of `NAME=PATH` and `PATH`, whose last part is the name.

    InvalidArgumentError for what is none of them, and where two have the same name.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else [_named(one) for one in _listed(given)]
    for name, path in pairs:
        if not isinstance(name, str) or not isinstance(path, str | Path) or not name.strip() or not str(path):
            raise InvalidArgumentError(f"An adapter has a name and a path, got {name!r:.80} and {path!r:.80}.")
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidArgumentError(f"Two adapters are called {twice!r:.80}; write NAME=PATH to give one another name.")
    return {name: str(path) for name, path in pairs}


def _listed(given: Any) -> list[Any]:
    is_list = isinstance(given, Iterable) and not isinstance(given, str | bytes)
    if not is_list or not (listed := list(given)):
        raise InvalidArgumentError(f"adapters should be a mapping, or a list of one or more, got {given!r:.80}.")
    return listed


def _named(given: Any) -> tuple[Any, Any]:
    if not isinstance(given, str | Path):
        return None, given
    name, _, path = str(given).partition("=")
    is_named = name and path and not Path(given).exists()
    return (name, path) if is_named else (Path(given).resolve().name, given)

"""The options of an engine: one table with the type, default, help text and check of each.

Python's signatures and reference, the command line's flags, configuration files, environment variables and the option
tables of the documentation are all derived from `EngineConfig`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from aethermind.config.section import Check, check_fields, one_of, setting
from aethermind.engine.option_checks import SPECULATION_OPTIONS, check_combinations
from aethermind.errors import InvalidArgumentError, did_you_mean
from aethermind.model.hub_files import HubName
from aethermind.python_api import append_options

__all__ = ["EngineConfig", "EngineOptions", "OPTION_DOCS", "named_adapters"]


class EngineOptions(TypedDict, total=False):
    """The options of an engine as `LLM` takes them. `EngineConfig` has their defaults, meaning and checks."""

    device: str
    dtype: str
    quantization: str | None
    lm_head_quantization: str | None
    lm_head: str | None
    lm_head_dtype: str | None
    embedding_dtype: str | None
    load_format: str
    weight_cache: float
    tokenizer: str | Path | None
    adapters: Mapping[str, str | Path] | Iterable[str | Path] | None
    max_loras: int | None
    max_lora_rank: int
    max_model_len: int | None
    num_kv_blocks: int | None
    memory: str | int | None
    gpu_memory_utilization: float
    block_size: int | None
    kv_cache_layout: str
    kv_cache_dtype: str
    swap_space: float
    swap_device: str | None
    enable_prefix_caching: bool
    context_shift: bool
    num_keep: int
    kv_store: str | None
    swap_threshold: float
    device_memory_threshold: float | None
    max_sessions: int
    session_ttl: float
    session_dir: str | None
    num_threads: int | None
    seed: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_prefill_chunk: int | None
    max_new_tokens: int | None
    scheduling_policy: str
    fallback: str
    deterministic: bool
    prefill_stream: bool
    profiler_ranges: bool
    speculative_method: str | None
    draft_model: str | Path | None
    num_speculative_tokens: int
    prompt_lookup_max: int
    prompt_lookup_min: int
    executor: str
    tensor_parallel_size: int
    numa: str


def _is_number(value: object, *kinds: type) -> bool:
    """Whether a value is of one of these types; True and False, which are integers to Python, are not accepted."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def _name(expected: str) -> Check:
    """Check that a value is a text; `expected` describes it in the error message."""
    return Check(lambda value: isinstance(value, str), expected)


def _number(accepts: Callable[[float], bool], expected: str) -> Check:
    """Check that a value is a number that `accepts` returns true for."""
    return Check(lambda value: _is_number(value, int, float) and accepts(value), expected)


def _is_size(value: object) -> bool:
    from aethermind.cache.stores.kv_store import parse_size

    try:
        return isinstance(value, str) and parse_size(value) > 0
    except InvalidArgumentError:
        return False


_COUNT = Check(lambda value: _is_number(value, int) and 0 < value < 2**40, "a positive integer")
_FLAG = Check(lambda value: isinstance(value, bool), "True or False")
_BY_MEMORY = "what memory allows"

_OTHER_ENGINES_OPTIONS = {
    "cpu_offload_gb": "weights remain on the device; leave it out",
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
"""Options of vLLM, llama-cpp-python and transformers, and what to do instead."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The options of one engine, checked.

    Names of devices, formats, policies, proposers and executors are looked up later, when an engine is assembled.

    Raises InvalidArgumentError for values out of range.
    """

    device: str = setting(
        "auto",
        "Device to run on: auto, cpu, numpy, cuda:0, …; `aethermind doctor` lists them.",
        check=_name("a name, such as auto"),
    )
    dtype: str = setting(
        "auto",
        "Data type of the computation: auto (the checkpoint's), float32, bfloat16 or float16.",
        check=_name("a name, such as auto"),
    )
    quantization: str | None = setting(
        None,
        "Convert weights to this format while loading: int8, int4, int2, int1, …; dense dequantises them.",
        check=_name("the name of a weight format"),
        unset="the checkpoint's",
    )
    lm_head_quantization: str | None = setting(
        None,
        "Weight format of the output matrix (lm_head).",
        check=_name("the name of a weight format"),
        unset="as quantization, but at least int8",
        old_names=("lm_head",),
    )
    lm_head_dtype: str | None = setting(
        None,
        "Data type in which the output projection (lm_head) is computed, with dense weights.",
        check=one_of("float32", "bfloat16", "float16"),
        unset="dtype",
    )
    embedding_dtype: str | None = setting(
        None,
        "Data type in which embeddings are looked up and scaled, before they are rounded to dtype.",
        check=one_of("float32", "bfloat16", "float16"),
        unset="dtype",
    )
    load_format: str = setting(
        "auto",
        "How weights are loaded: auto reads them; dummy makes random ones, to try the speed of a model.",
        check=one_of("auto", "dummy"),
    )
    weight_cache: float = setting(
        16.0,
        "GiB of disk for packed weights, which make later starts fast; 0 for none.",
        check=_number(lambda value: 0 <= value < 2**20, "GiB of disk space, 0 for none"),
        details="They are kept in the user's cache directory.",
    )
    tokenizer: str | None = setting(
        None,
        "Another tokenizer: a directory, a tokenizer.json, a .gguf file, or a model's name (ORG/NAME on the Hub).",
        check=_name("the name of a model, or the path of a tokenizer"),
        unset="the model's",
        metavar="PATH|MODEL",
    )
    adapters: Mapping[str, str] | None = setting(
        None,
        "LoRA adapters in PEFT's format, each PATH or NAME=PATH; a path may be ORG/NAME on the Hugging Face Hub.",
        check=Check(lambda value: isinstance(value, dict), "a mapping"),
        unset="none",
        details="In Python also a mapping from names to paths. Requests select an adapter by its name; that of a path "
        "is its last part.",
        flags=("--adapter",),
        metavar="[NAME=]PATH",
    )
    max_loras: int | None = setting(
        None,
        "Number of LoRA adapters that can be loaded at once while the engine runs.",
        check=_COUNT,
        unset="those of adapters, loaded with the model",
        details="Their memory is allocated when the model is loaded (see `Engine.load_adapter`).",
    )
    max_lora_rank: int = setting(16, "Largest rank of an adapter, if max_loras is set.", check=_COUNT)
    max_model_len: int | None = setting(
        None,
        "Maximum context, prompt and answer together, in tokens.",
        check=_COUNT,
        unset=f"the model's, or {_BY_MEMORY}",
        flags=("--max-model-len", "-c"),
    )
    num_kv_blocks: int | None = setting(
        None,
        "Number of blocks in the KV cache, which all requests share.",
        check=_COUNT,
        unset=_BY_MEMORY,
    )
    memory: str | None = setting(
        None,
        "Memory that the model may take, such as 8GiB: weights, KV cache, workspace and, in host memory, its process.",
        check=Check(_is_size, "a size such as 8GiB, 512MiB or a number of bytes"),
        unset="what is free",
        details="The KV cache and the default context are sized to it, and a model that does not fit is refused before "
        "it is loaded. On a GPU it is a limit of that device's memory. In Python also a number of bytes.",
        metavar="SIZE",
    )
    gpu_memory_utilization: float = setting(
        0.9,
        "Fraction of a GPU's memory that may be in use, KV cache included; ignored if num_kv_blocks is set.",
        check=_number(lambda value: 0 < value <= 1, "more than 0 and at most 1"),
        details="Other processes' memory counts too. Without effect on a device that computes in host memory.",
    )
    block_size: int | None = setting(
        None,
        "Tokens per block of the KV cache.",
        check=_COUNT,
        unset="what the device prefers, usually 16",
        details="The error about one that the device does not take names those that it takes.",
    )
    kv_cache_layout: str = setting(
        "paged",
        "Blocks of the KV cache: paged (of block_size tokens), cell (of one token), or static (of a whole context).",
        check=one_of("paged", "cell", "static"),
    )
    kv_cache_dtype: str = setting(
        "auto",
        "Data type of the KV cache: auto (that of the computation), int8 or fp8. float32, bfloat16 and float16 are "
        "accepted where that is the data type of the computation.",
        check=one_of("auto", "float32", "bfloat16", "float16", "int8", "fp8", "fp8_e4m3"),
        details="int8 and fp8 (e4m3) have one scale per head and token, and take about half of bfloat16's memory.",
    )
    swap_space: float = setting(
        0.0,
        "GiB of host memory to which idle sessions and preempted requests are swapped out when the KV cache fills.",
        check=_number(lambda value: 0 <= value < 2**20, "GiB of memory, 0 for none"),
    )
    swap_device: str | None = setting(
        None,
        "Another device of the same kind in whose memory the swap space is, such as cuda:1.",
        check=_name("the name of a device, such as cuda:1"),
        unset="host memory",
        details="The device has to access its memory directly (peer access).",
    )
    swap_threshold: float = setting(
        0.9,
        "Fraction of the KV cache in use above which idle sessions are swapped out, the least recently used first.",
        check=_number(lambda value: 0 <= value <= 1, "a fraction, 0 to 1"),
    )
    device_memory_threshold: float | None = setting(
        None,
        "Fraction of the device's memory in use, by any process, above which the KV cache returns what is idle.",
        check=_number(lambda value: 0 <= value <= 1, "a fraction, 0 to 1"),
        unset="never",
        details="For devices in host memory. Idle sessions are swapped out and cached prefixes evicted, so that memory "
        "of their blocks is returned to the system.",
    )
    enable_prefix_caching: bool = setting(
        True, "Prefix caching: reuse computed keys and values for prompts with the same prefix.", check=_FLAG
    )
    context_shift: bool = setting(
        False,
        "When the context is full, drop its oldest tokens after the first num_keep, and continue.",
        check=_FLAG,
        details="Prompts that are too long are shortened in the same way. An answer without max_tokens has at most as "
        "many tokens as the context.",
    )
    num_keep: int = setting(
        4,
        "Tokens at the beginning of a text that a context shift keeps, rounded up to whole blocks.",
        check=Check(lambda value: _is_number(value, int) and 0 <= value < 2**40, "an integer of 0 or more"),
        flags=("--keep",),
    )
    kv_store: str | None = setting(
        None,
        "Store to which the prefix cache is offloaded, where other engines find it: disk:/path?size=10GiB, "
        "redis://server:6379/0, host:2GiB (memory of this process), or a plugin's.",
        check=_name("the address of a store, such as disk:/path"),
        unset="none",
        details="Closing the engine writes what the store lacks.",
        metavar="ADDRESS",
    )
    max_sessions: int = setting(
        256, "Maximum number of conversations (session_id) whose KV cache is kept for the next turn.", check=_COUNT
    )
    session_ttl: float = setting(
        600.0,
        "Seconds for which a conversation's KV cache is kept after a turn.",
        check=_number(lambda value: 0 < value < 2**40, "seconds, more than 0"),
    )
    session_dir: str | None = setting(
        None,
        "Directory to which sessions are saved, on request and when the engine closes; their next turns load them.",
        check=Check(lambda value: isinstance(value, str) and value != "", "the path of a directory"),
        unset="none",
        metavar="PATH",
    )
    num_threads: int | None = setting(
        None,
        "Worker threads of a device that computes on the CPU.",
        check=_COUNT,
        unset="the device's choice",
        flags=("--threads", "-t"),
        variable="AETHERMIND_NUM_THREADS",
    )
    seed: int = setting(
        0,
        "Seed of requests without a seed of their own, and of the weights of load_format='dummy'.",
        check=Check(lambda value: _is_number(value, int), "an integer"),
    )
    max_num_seqs: int = setting(64, "Maximum number of requests that run at once.", check=_COUNT)
    max_num_batched_tokens: int = setting(
        512, "Maximum number of tokens per step; a longer prompt is computed in chunks.", check=_COUNT
    )
    max_prefill_chunk: int | None = setting(
        None,
        "Maximum number of tokens of one prompt per step (chunked prefill).",
        check=_COUNT,
        unset="no limit besides max_num_batched_tokens",
        details="Smaller chunks leave more of a step to other prompts, and a long prompt takes more steps.",
    )
    max_new_tokens: int | None = setting(
        None,
        "Maximum number of tokens of any answer, whatever its request asks for.",
        check=_COUNT,
        unset="no limit",
    )
    scheduling_policy: str = setting(
        "fair",
        "Order in which requests run: fair (between tenants), fcfs, priority, shortest (least estimated work), "
        "deadline, weighted (by a sum of arrival, priority, size and deadline), or a plugin's policy. "
        "Parameters follow its name: priority:aging_s=10:vip_share=0.25.",
        check=_name("a name, such as fair"),
        metavar="NAME[:PARAMETER=VALUE…]",
    )
    fallback: str = setting(
        "warn",
        "Operators for which the device has no kernel: error refuses them; warn and allow use the slow reference.",
        check=one_of("error", "warn", "allow"),
    )
    deterministic: bool = setting(
        False, "Refuse kernels whose results depend on what else is in the batch.", check=_FLAG
    )
    prefill_stream: bool = setting(
        False,
        "Compute prompts on a second stream of the device, concurrently with the decodes of a step.",
        check=_FLAG,
        details="The step's intermediate values take twice the memory. `aethermind bench prefill-stream` shows whether "
        "it pays.",
    )
    profiler_ranges: bool = setting(
        False,
        "Name steps and operators in the timeline of a profiler: NVTX on cuda, mstx on cann, else ITT.",
        check=_FLAG,
        details="Needs the package nvtx, none, or ittapi. Each operator is submitted by itself, so steps take longer.",
    )
    speculative_method: str | None = setting(
        None,
        "Speculative decoding: mtp, prompt_lookup, draft (with draft_model), or a plugin's method.",
        check=_name("the name of a proposer, such as prompt_lookup"),
        unset="off",
        details="The answers are the same as without.",
    )
    draft_model: str | None = setting(
        None,
        "The smaller model of the draft method, with the same vocabulary.",
        check=_name("the name of a model or its directory"),
        unset="none",
    )
    num_speculative_tokens: int = setting(
        8, "Maximum number of draft tokens per request and step; fewer if they do not pay.", check=_COUNT
    )
    prompt_lookup_max: int = setting(4, "Longest n-gram that prompt_lookup searches for, in tokens.", check=_COUNT)
    prompt_lookup_min: int = setting(2, "Shortest n-gram that prompt_lookup searches for, in tokens.", check=_COUNT)
    executor: str = setting(
        "auto",
        "Where steps run: auto, inline (the engine's process), multiproc (a process per rank), or a plugin's.",
        check=_name("a name, such as auto"),
    )
    tensor_parallel_size: int = setting(
        1,
        "Number of ranks that split every layer between them.",
        check=_COUNT,
        flags=("--tensor-parallel-size", "-tp"),
    )
    numa: str = setting(
        "auto",
        "On a CPU with several NUMA nodes: auto places threads, weights and KV cache by node; off leaves it to the "
        "system.",
        check=one_of("auto", "off"),
        details="With tensor_parallel_size each rank gets its own nodes. Answers are the same.",
    )

    def __post_init__(self) -> None:
        if self.adapters is not None:
            object.__setattr__(self, "adapters", named_adapters(self.adapters))
        if _is_number(self.memory, int):
            object.__setattr__(self, "memory", str(self.memory))
        check_fields(self)
        check_combinations(self)

    @classmethod
    def of(cls, **options: Unpack[EngineOptions]) -> EngineConfig:
        """The configuration with these options; InvalidArgumentError also for one that does not exist."""
        if unknown := sorted(options.keys() - EngineOptions.__annotations__.keys()):
            advice = _OTHER_ENGINES_OPTIONS.get(unknown[0])
            advice = f": {advice}." if advice else did_you_mean(unknown[0], EngineOptions.__annotations__)
            raise InvalidArgumentError(f"An engine has no option {unknown[0]!r}{advice}")
        named: dict[str, Any] = {
            name: str(value) if isinstance(value, Path) else value for name, value in options.items()
        }
        for new, old in _renamed().items():
            if old in named:
                value = named.pop(old)
                if new in named:
                    raise InvalidArgumentError(f"{new} and {old} are the same option; leave {old} out.")
                from aethermind.plugins.compatibility import deprecated

                deprecated(f"the option {old}", instead=new, until="0.4", stacklevel=_levels_to_caller())
                named[new] = value
        return cls(**named)

    @property
    def memory_bytes(self) -> int | None:
        """`memory` in bytes; None without a limit."""
        from aethermind.cache.stores.kv_store import parse_size

        return None if self.memory is None else parse_size(self.memory)

    @property
    def executor_name(self) -> str:
        """The executor that `auto` stands for."""
        if self.executor != "auto":
            return self.executor
        return "inline" if self.tensor_parallel_size == 1 else "multiproc"

    def of_draft(self, num_kv_blocks: int) -> EngineConfig:
        """Return the options with which the model that drafts is compiled: for one process, without an engine of its
        own.
        """
        unset: dict[str, Any] = {
            option.name: option.default for option in fields(self) if option.name in SPECULATION_OPTIONS
        }
        return replace(
            self,
            speculative_method=None,
            num_kv_blocks=num_kv_blocks,
            swap_space=0.0,
            swap_device=None,
            device_memory_threshold=None,
            kv_store=None,
            adapters=None,
            max_loras=None,
            executor="auto",
            tensor_parallel_size=1,
            context_shift=False,
            prefill_stream=False,
            **unset,
        )


def _renamed() -> dict[str, str]:
    """Return the options that have a deprecated name, which is still accepted, with that name."""
    return {option.name: old for option in fields(EngineConfig) for old in option.metadata["setting"].old_names}


def _levels_to_caller() -> int:
    """Return the `stacklevel`, for a `warnings.warn` two calls below, of the nearest frame outside the package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "aethermind":
        frame, level = frame.f_back, level + 1
    return level


def _docs() -> dict[str, str]:
    """Return the description of every option by name, for the reference of the Python API."""
    docs = {}
    for option in fields(EngineConfig):
        described = option.metadata["setting"]
        default = f"None: {described.unset}." if described.unset not in ("", "none", "off") else ""
        docs[option.name] = " ".join(filter(None, (described.help, default, described.details)))
    for new, old in _renamed().items():
        docs[old] = f"Deprecated name of `{new}`."
    return {name: docs[name] for name in EngineOptions.__annotations__}


OPTION_DOCS = _docs()
"""The description of each of `EngineOptions`, by name."""

append_options(
    EngineOptions, OPTION_DOCS, {option.name: option.default for option in fields(EngineConfig)}, title="Options"
)


def named_adapters(given: Any) -> dict[str, str]:
    """Return paths of adapters by name, from a mapping, or from a list of `NAME=PATH` and `PATH`.

    The name of a `PATH` is its last part. InvalidArgumentError for anything else, and if two have the same name.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else [_name_and_path(entry) for entry in _entries(given)]
    for name, path in pairs:
        if not isinstance(name, str) or not isinstance(path, str | Path) or not name.strip() or not str(path):
            raise InvalidArgumentError(f"An adapter has a name and a path, got {name!r:.80} and {path!r:.80}.")
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidArgumentError(f"Two adapters are called {twice!r:.80}; write NAME=PATH to give one another name.")
    return {name: str(path) for name, path in pairs}


def _entries(given: Any) -> list[Any]:
    is_list = isinstance(given, Iterable) and not isinstance(given, str | bytes)
    if not is_list or not (entries := list(given)):
        raise InvalidArgumentError(
            f"adapters should be a mapping, or a list of one or more, got {given!r:.80}.", param="adapters"
        )
    return entries


def _name_and_path(given: Any) -> tuple[Any, Any]:
    if not isinstance(given, str | Path):
        return None, given
    name, _, path = str(given).partition("=")
    if name and path and not Path(given).exists():
        return name, path
    on_hub = None if Path(given).exists() else HubName.parse(str(given))
    return (Path(given).resolve().name if on_hub is None else on_hub.repo.rpartition("/")[2]), given

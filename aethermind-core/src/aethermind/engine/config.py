"""What the caller of an engine decides: device, numbers and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aethermind.cache.stores.address import StoreAddress
from aethermind.errors import InvalidArgumentError

__all__ = ["EngineConfig", "MAX_SPECULATIVE_TOKENS"]

MAX_SPECULATIVE_TOKENS = 32
"""The most drafts of one request in a step."""

_NAMES = {
    "quantization": "weight format",
    "lm_head": "weight format",
    "speculative_method": "proposer, such as prompt_lookup",
    "draft_model": "model or its directory",
    "tokenizer": "model, or the path of a tokenizer",
}

_DEFAULT_NAMES = (("device", "auto"), ("dtype", "auto"), ("scheduling_policy", "fair"), ("executor", "auto"))

_COUNTS = (
    "max_model_len",
    "num_kv_blocks",
    "block_size",
    "num_threads",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_new_tokens",
    "max_sessions",
    "num_speculative_tokens",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "tensor_parallel_size",
)

_NUMBERS: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "swap_space": (lambda value: 0 <= value < 2**20, "GiB of host memory, 0 for none"),
    "weight_cache": (lambda value: 0 <= value < 2**20, "GiB of disk space, 0 for none"),
    "swap_threshold": (lambda value: 0 <= value <= 1, "a fraction of the blocks, 0 to 1"),
    "session_ttl": (lambda value: 0 < value < 2**40, "seconds, more than 0"),
}

_FLAGS = ("enable_prefix_caching", "deterministic")

_KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "float16", "int8", "fp8", "fp8_e4m3")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Options of one engine; None leaves a number to the model and the device.

    `quantization` names the weight format of the model's matrices, `lm_head` that of the one that makes logits (None:
    int8 where the others have fewer bits, else the same). Names are checked where formats are known, when a model is
    planned. `weight_cache` is in GiB of files that keep packed weights for the next start (see `engine.weight_cache`).
    `tokenizer` is where another tokenizer than the model's own is. `swap_space` is in GiB of host memory, `kv_store`
    the address of a store (see `cache.stores.address`).
    `max_new_tokens` is a quota: no answer gets longer, whatever its request asks for. The last turns of `max_sessions`
    sessions are kept for `session_ttl` seconds. Parked sequences go to the swap space once sequences hold more than the
    fraction `swap_threshold` of the blocks.
    `speculative_method` names what drafts tokens (see `engine.speculative`), at most
    `num_speculative_tokens` of a request in a step; `prompt_lookup` looks for the last `prompt_lookup_max` tokens, then
    for fewer, down to `prompt_lookup_min`. `executor` names where steps run (see `engine.executors`), on
    `tensor_parallel_size` ranks that share the model.

    Raises InvalidArgumentError for values out of range.
    """

    device: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    lm_head: str | None = None
    load_format: str = "auto"
    weight_cache: float = 16.0
    tokenizer: str | None = None
    max_model_len: int | None = None
    num_kv_blocks: int | None = None
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    swap_space: float = 0.0
    swap_threshold: float = 0.9
    num_threads: int | None = None
    seed: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_new_tokens: int | None = None
    scheduling_policy: str = "fair"
    enable_prefix_caching: bool = True
    max_sessions: int = 256
    session_ttl: float = 600.0
    kv_store: str | None = None
    fallback: str = "warn"
    deterministic: bool = False
    speculative_method: str | None = None
    draft_model: str | None = None
    num_speculative_tokens: int = 8
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 2
    executor: str = "auto"
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        for name, default in _DEFAULT_NAMES:
            if not isinstance(getattr(self, name), str):
                raise InvalidArgumentError(f"{name} should be a name, such as {default}, got {getattr(self, name)!r}.")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and not (_is_number(value, int) and 0 < value < 2**40):
                raise InvalidArgumentError(f"{name} should be a positive integer, got {value!r}.")
        for name, (fits, words) in _NUMBERS.items():
            value = getattr(self, name)
            if not (_is_number(value, int, float) and fits(value)):
                raise InvalidArgumentError(f"{name} should be {words}, got {value!r}.")
        if not _is_number(self.seed, int):
            raise InvalidArgumentError(f"seed should be an integer, got {self.seed!r}.")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgumentError(f"{name} should be True or False, got {getattr(self, name)!r}.")
        _check_choice("kv_cache_dtype", self.kv_cache_dtype, _KV_CACHE_DTYPES)
        if self.kv_store is not None:
            _check_store(self.kv_store, self.enable_prefix_caching)
            if self.tensor_parallel_size > 1:
                raise InvalidArgumentError(
                    "A KV store cannot be shared by several ranks: each has its own heads. Leave kv_store or "
                    "tensor_parallel_size out."
                )
        _check_choice("load_format", self.load_format, ("auto", "dummy"))
        _check_choice("fallback", self.fallback, ("error", "warn", "allow"))
        for name, kind in _NAMES.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidArgumentError(f"{name} should be the name of a {kind}, got {value!r}.")
        self._check_speculation()

    @property
    def executor_name(self) -> str:
        """The executor that `auto` is."""
        if self.executor != "auto":
            return self.executor
        return "inline" if self.tensor_parallel_size == 1 else "multiproc"

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
        if self.draft_model is not None and self.speculative_method is None:
            raise InvalidArgumentError(
                "draft_model is given and speculative_method is not; set that to draft, or leave both out."
            )


def _is_number(value: object, *kinds: type) -> bool:
    """Whether a value is of one of these kinds; True and False, which are integers to Python, are none here."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def _check_store(address: object, enable_prefix_caching: bool) -> None:
    if not isinstance(address, str):
        raise InvalidArgumentError(f"kv_store should be the address of a store, such as disk:/path, got {address!r}.")
    StoreAddress.parse(address)
    if not enable_prefix_caching:
        raise InvalidArgumentError("A KV store needs enable_prefix_caching: what it has is found by its beginning.")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidArgumentError(f"{name} should be one of {', '.join(choices)}, got {value!r}.")

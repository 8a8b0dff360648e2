"""What the caller of an engine decides: device, numbers and limits."""

from __future__ import annotations

from dataclasses import dataclass

from aethermind.errors import InvalidArgumentError

__all__ = ["EngineConfig"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Options of one engine; None leaves a number to the model and the device.

    Raises InvalidArgumentError for values out of range.
    """

    device: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    load_format: str = "auto"
    max_model_len: int | None = None
    num_kv_blocks: int | None = None
    block_size: int = 16
    num_threads: int | None = None
    seed: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    enable_prefix_caching: bool = True
    fallback: str = "warn"

    def __post_init__(self) -> None:
        for name in ("device", "dtype"):
            if not isinstance(getattr(self, name), str):
                raise InvalidArgumentError(f"{name} should be a name, such as auto, got {getattr(self, name)!r}.")
        for name in (
            "max_model_len",
            "num_kv_blocks",
            "block_size",
            "num_threads",
            "max_num_seqs",
            "max_num_batched_tokens",
        ):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**40):
                raise InvalidArgumentError(f"{name} should be a positive integer, got {value!r}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InvalidArgumentError(f"seed should be an integer, got {self.seed!r}.")
        if not isinstance(self.enable_prefix_caching, bool):
            raise InvalidArgumentError(
                f"enable_prefix_caching should be True or False, got {self.enable_prefix_caching!r}."
            )
        _check_choice("load_format", self.load_format, ("auto", "dummy"))
        _check_choice("fallback", self.fallback, ("error", "warn", "allow"))
        if self.quantization is not None:
            raise InvalidArgumentError(
                f"quantization {self.quantization!r} is not available: no installed package offers weight formats "
                "other than dense. Leave it out to load the weights as they are."
            )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidArgumentError(f"{name} should be one of {', '.join(choices)}, got {value!r}.")

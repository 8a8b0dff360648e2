"""What a model's generation_config.json says of sampling, by the names of SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.sampling.params import SamplingParams

__all__ = ["read_sampling_defaults"]

_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def read_sampling_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for SamplingParams that the file's contents give; null and fields of other kinds give none.

    `do_sample: false` is temperature 0, whatever temperature stands beside it. ConfigError names a bad value.
    """
    defaults = {ours: generation[theirs] for theirs, ours in _NAMES.items() if generation.get(theirs) is not None}
    do_sample = generation.get("do_sample")
    if do_sample is not None and not isinstance(do_sample, bool):
        raise ConfigError(f"do_sample is {do_sample!r} in generation_config.json; write true or false.")
    for theirs, ours in _NAMES.items():
        if ours in defaults:
            _check(theirs, ours, defaults[ours])
    if do_sample is False:
        defaults["temperature"] = 0.0
    return defaults


def _check(theirs: str, ours: str, value: Any) -> None:
    try:
        SamplingParams(**{ours: value})
    except InvalidArgumentError as error:
        renamed = f" ({theirs} is max_tokens here)" if theirs != ours else ""
        raise ConfigError(f"generation_config.json has a value that cannot be used{renamed}: {error}") from None

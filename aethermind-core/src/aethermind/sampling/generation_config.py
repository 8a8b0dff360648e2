"""Sampling defaults of a model's generation_config.json, under the names of SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.sampling.params import SamplingParams

__all__ = ["SAMPLING_FIELDS", "read_sampling_defaults", "with_defaults"]

SAMPLING_FIELDS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
}
"""Fields of generation_config.json that sampling uses, with their names in SamplingParams."""


def read_sampling_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for SamplingParams in the file's contents, without null and other fields.

    `do_sample: false` is temperature 0, whatever `temperature` is. ConfigError names an invalid value.
    """
    defaults = {
        ours: generation[theirs] for theirs, ours in SAMPLING_FIELDS.items() if generation.get(theirs) is not None
    }
    do_sample = generation.get("do_sample")
    if do_sample is not None and not isinstance(do_sample, bool):
        raise ConfigError(f"do_sample is {do_sample!r} in generation_config.json; write true or false.")
    for theirs, ours in SAMPLING_FIELDS.items():
        if ours in defaults:
            _check(theirs, ours, defaults[ours])
    if do_sample is False:
        defaults["temperature"] = 0.0
    return defaults


def with_defaults(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a request's `own` arguments for SamplingParams with the model's `defaults`.

    If the least and the most number of tokens contradict each other, the default is adjusted to the request. `None` in
    `own` means that the argument was not given.
    """
    own = {name: value for name, value in own.items() if value is not None}
    merged = {**defaults, **own}
    if own.get("structured_outputs") is not None and "min_tokens" not in own:
        merged.pop("min_tokens", None)  # structured outputs define the end of the answer
    least, most = merged.get("min_tokens"), merged.get("max_tokens")
    if isinstance(least, int) and isinstance(most, int) and 0 < most < least:
        if "max_tokens" not in own:
            merged["max_tokens"] = least
        elif "min_tokens" not in own:
            merged["min_tokens"] = most
    return merged


def _check(theirs: str, ours: str, value: Any) -> None:
    try:
        # min_tokens is checked by itself: the default of max_tokens is not the model's.
        SamplingParams(**{"max_tokens": None, ours: value})
    except InvalidArgumentError as error:
        renamed = f" ({theirs} is {ours} here)" if theirs != ours else ""
        raise ConfigError(f"generation_config.json has a value that cannot be used{renamed}: {error}") from None

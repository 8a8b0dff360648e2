"""The fields that say how tokens are chosen, in OpenAI's names and ours, and the SamplingParams they stand for."""

from __future__ import annotations

from typing import Any

from aethermind.errors import InvalidArgumentError
from aethermind.sampling.params import SamplingParams
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel

__all__ = ["SamplingFields", "StreamOptions", "sampling_params"]

_OWN_NAMES = (
    "temperature",
    "top_p",
    "seed",
    "stop",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
)


class StreamOptions(StrictModel):
    """What a stream tells besides text."""

    include_usage: bool | None = None


class SamplingFields(StrictModel):
    """What completions and chats have in common. None everywhere means: as the model's own settings say."""

    model: str
    max_tokens: int | None = None
    temperature: int | float | None = None
    top_p: int | float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    top_k: int | None = None
    min_p: int | float | None = None
    repetition_penalty: int | float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None

    @property
    def asked_tokens(self) -> int | None:
        """The most tokens the client wants; None leaves it to the endpoint."""
        return self.max_tokens

    @property
    def has_stream_usage(self) -> bool:
        """Whether a stream ends with what it took."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def sampling_params(
    fields: SamplingFields, defaults: dict[str, Any], *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """What a request asks of sampling; what it leaves out is in `defaults`. ApiError 400 for values out of range."""
    given = {name: value for name in _OWN_NAMES if (value := getattr(fields, name)) is not None}
    try:
        return SamplingParams(**{**defaults, **given, "max_tokens": max_tokens, "logprobs": logprobs})
    except InvalidArgumentError as error:
        field = str(error).split(" ", 1)[0]
        raise ApiError(400, str(error), param=field if hasattr(fields, field) else None, code="invalid_value") from None

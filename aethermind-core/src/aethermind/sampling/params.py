"""What a caller asks of sampling: one frozen, validated value that travels with a request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import NoReturn

from aethermind.errors import InvalidArgumentError

__all__ = ["MAX_LOGPROBS", "MAX_STOP_STRINGS", "MAX_STOP_TOKEN_IDS", "SamplingParams"]

MAX_LOGPROBS = 20
"""The most alternatives a request may ask to see for each token."""

MAX_STOP_STRINGS = 16
"""The most stop strings a request may carry: each is searched for in every piece of text that is produced."""

MAX_STOP_TOKEN_IDS = 64
"""The most stop token ids a request may carry: the sampler's memory is set aside before requests come."""


@dataclass(frozen=True, slots=True, init=False)
class SamplingParams:
    """How the tokens of one request are chosen, and when it ends.

    The constructor takes what people write (`stop="\\n"`, `top_k=-1`); the fields hold one form of it
    (`stop == ("\\n",)`, `top_k == 0`). Every value out of range raises `InvalidArgumentError`.
    """

    temperature: float
    """Divides the logits; 0 takes the most likely token."""
    top_k: int
    """Sample among the k most likely tokens; 0 is off."""
    top_p: float
    """Sample among the fewest most likely tokens whose probabilities sum to at least this; 1 is off."""
    min_p: float
    """Drop tokens less likely than this fraction of the most likely one; 0 is off."""
    repetition_penalty: float
    """Above 1 discourages tokens that occurred in prompt or output, below 1 favours them; 1 is off."""
    seed: int | None
    """Makes the request's random numbers reproducible, in any batch; None lets the engine choose."""
    max_tokens: int | None
    """The most tokens to generate; None goes on to the end of the context."""
    min_tokens: int
    """Tokens to generate before a stop token or stop string may end the output."""
    stop: tuple[str, ...]
    """Strings that end the output where they first occur."""
    stop_token_ids: tuple[int, ...]
    """Token ids that end the output, besides the model's own end-of-text ids."""
    ignore_eos: bool
    """Go on past the model's own end-of-text ids."""
    logprobs: int | None
    """Report log probabilities of the chosen token and of this many of the most likely; None is off."""

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        max_tokens: int | None = 16,
        min_tokens: int = 0,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        ignore_eos: bool = False,
        logprobs: int | None = None,
    ) -> None:
        values = {
            "temperature": _number("temperature", temperature, 0.0, math.inf, "0 is greedy and 1 the plain model"),
            "top_k": max(_integer("top_k", top_k, -1, None, "0 or -1 turns it off"), 0),
            "top_p": _number("top_p", top_p, 0.0, 1.0, "1 turns it off", is_above=True),
            "min_p": _number("min_p", min_p, 0.0, 1.0, "0 turns it off"),
            "repetition_penalty": _number(
                "repetition_penalty", repetition_penalty, 0.0, math.inf, "1 turns it off", is_above=True
            ),
            "seed": _optional("seed", seed, 0, 2**64 - 1, "None lets the engine choose"),
            "max_tokens": _optional("max_tokens", max_tokens, 1, None, "None goes on to the end of the context"),
            "min_tokens": _integer("min_tokens", min_tokens, 0, None, "0 turns it off"),
            "stop": _stop(stop),
            "stop_token_ids": _stop_token_ids(stop_token_ids),
            "ignore_eos": _boolean("ignore_eos", ignore_eos),
            "logprobs": _optional("logprobs", logprobs, 0, MAX_LOGPROBS, "None turns them off"),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidArgumentError(
                f"min_tokens is {self.min_tokens} but max_tokens is {self.max_tokens}: "
                "min_tokens must be at most max_tokens; lower the one or raise the other."
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken, so that no random number is needed."""
        return self.temperature == 0.0 or self.top_k == 1


def _number(name: str, value: object, lowest: float, highest: float, way_out: str, *, is_above: bool = False) -> float:
    """Return a finite number from `lowest`, itself excluded if `is_above`, to `highest`."""
    upper = "" if highest == math.inf else f" and at most {highest:g}"
    allowed = f"a finite number {'above' if is_above else 'of at least'} {lowest:g}{upper}"
    if isinstance(value, bool) or not isinstance(value, Real):
        _refuse(name, value, allowed, way_out)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    is_low = number <= lowest if is_above else number < lowest
    if is_low or number > highest or not math.isfinite(number):
        _refuse(name, value, allowed, way_out)
    return number


def _integer(name: str, value: object, lowest: int, highest: int | None, way_out: str) -> int:
    allowed = f"an integer of at least {lowest}" if highest is None else f"an integer from {lowest} to {highest}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        _refuse(name, value, allowed, way_out)
    number = int(value)
    if number < lowest or (highest is not None and number > highest):
        _refuse(name, value, allowed, way_out)
    return number


def _optional(name: str, value: object, lowest: int, highest: int | None, way_out: str) -> int | None:
    return None if value is None else _integer(name, value, lowest, highest, way_out)


def _boolean(name: str, value: object) -> bool:
    return value if isinstance(value, bool) else _refuse(name, value, "True or False", "leave it out for False")


def _stop(value: object) -> tuple[str, ...]:
    allowed, way_out = "a non-empty string or a sequence of them", "leave it out to stop at end of text only"
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence):
        _refuse("stop", value, allowed, way_out)
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidArgumentError(
            f"stop has {len(strings)} strings but must have at most {MAX_STOP_STRINGS}; keep the vital ones."
        )
    for string in strings:
        if not isinstance(string, str) or not string:
            _refuse("stop", string, allowed, way_out)
    return tuple(strings)


def _stop_token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        _refuse("stop_token_ids", value, "a sequence of token ids", "put a single id in a list")
    if len(value) > MAX_STOP_TOKEN_IDS:
        raise InvalidArgumentError(
            f"stop_token_ids has {len(value)} ids but must have at most {MAX_STOP_TOKEN_IDS}; keep the vital ones."
        )
    way_out = "take ids from the model's vocabulary"
    return tuple(_integer("stop_token_ids", token_id, 0, 2**31 - 1, way_out) for token_id in value)


def _refuse(name: str, value: object, allowed: str, way_out: str) -> NoReturn:
    raise InvalidArgumentError(f"{name} is {value!r} but must be {allowed}; {way_out}.")

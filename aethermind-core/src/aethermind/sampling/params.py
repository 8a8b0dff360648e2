"""Sampling parameters and structured outputs: frozen, validated values that a caller passes with a request.

The names of structured outputs are vLLM's.
"""

from __future__ import annotations

import json as json_module
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, NoReturn

from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.python_api import document_fields, short_traceback

__all__ = [
    "MAX_BAD_WORDS",
    "MAX_CHOICES",
    "MAX_GRAMMAR_CHARS",
    "MAX_LOGIT_BIAS",
    "MAX_LOGPROBS",
    "MAX_N",
    "MAX_STOP_STRINGS",
    "MAX_STOP_TOKEN_IDS",
    "SAMPLING_FIELDS",
    "SamplingParams",
    "StructuredOutputs",
    "boolean",
    "integer",
    "number",
    "optional",
    "read_sampling_defaults",
    "refuse",
    "strings",
    "token_ids",
    "with_defaults",
]

MAX_STRING_CHARS = 4096
"""The longest stop string or bad word: each is tokenised or searched for while other requests wait."""


def number(name: str, value: object, lowest: float, highest: float, remedy: str, *, is_above: bool = False) -> float:
    """Return a finite number from `lowest`, itself excluded if `is_above`, to `highest`."""
    result = math.nan
    if isinstance(value, (float, int, Real)) and not isinstance(value, bool):  # `Real` alone is slow to check
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
    is_low = result <= lowest if is_above else result < lowest
    if is_low or result > highest or not math.isfinite(result):
        upper = "" if highest == math.inf else f" and at most {highest:g}"
        refuse(name, value, f"a finite number {'above' if is_above else 'of at least'} {lowest:g}{upper}", remedy)
    return result


def integer(name: str, value: object, lowest: int, highest: int | None, remedy: str) -> int:
    """Return an integer from `lowest` to `highest`, both included."""
    if isinstance(value, (int, Integral)) and not isinstance(value, bool):
        result = int(value)
        if lowest <= result and (highest is None or result <= highest):
            return result
    allowed = f"an integer of at least {lowest}" if highest is None else f"an integer from {lowest} to {highest}"
    refuse(name, value, allowed, remedy)


def optional(name: str, value: object, lowest: int, highest: int | None, remedy: str) -> int | None:
    """Return an integer like `integer`, or None."""
    return None if value is None else integer(name, value, lowest, highest, remedy)


def boolean(name: str, value: object) -> bool:
    """Return a bool; numbers are not accepted."""
    return value if isinstance(value, bool) else refuse(name, value, "True or False", "leave it out for False")


def strings(name: str, value: object, max_count: int, remedy: str) -> tuple[str, ...]:
    """Return up to `max_count` non-empty strings of up to MAX_STRING_CHARS; a string counts as one, None as none."""
    allowed = "a non-empty string or a sequence of them"
    if value is None:
        return ()
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Sequence):
        refuse(name, value, allowed, remedy)
    if len(given) > max_count:
        raise InvalidArgumentError(
            f"{name} has {len(given)} strings but must have at most {max_count}; keep the vital ones.", param=name
        )
    for string in given:
        if not isinstance(string, str) or not string:
            refuse(name, string, allowed, remedy)
        if len(string) > MAX_STRING_CHARS:
            raise InvalidArgumentError(
                f"{name} has a string of {len(string)} characters but each may have {MAX_STRING_CHARS}; shorten it.",
                param=name,
            )
    return tuple(given)


def token_ids(name: str, value: object, max_count: int | None) -> tuple[int, ...]:
    """Return at most `max_count` token ids; None counts as none."""
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        refuse(name, value, "a sequence of token ids", "put a single id in a list")
    if max_count is not None and len(value) > max_count:
        raise InvalidArgumentError(
            f"{name} has {len(value)} ids but must have at most {max_count}; keep the vital ones.", param=name
        )
    return tuple(integer(name, token_id, 0, 2**31 - 1, "take ids from the model's vocabulary") for token_id in value)


def refuse(name: str, value: object, allowed: str, remedy: str) -> NoReturn:
    """Raise InvalidArgumentError for a value, with what is allowed and how to correct it."""
    raise InvalidArgumentError(f"{name} is {value!r:.80} but must be {allowed}; {remedy}.", param=name)


MAX_GRAMMAR_CHARS = 256 * 1024
"""The longest schema, regex or grammar, and the greatest sum of the lengths of choices, in characters."""

MAX_CHOICES = 4096
"""The most choices of a request."""

_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass(frozen=True, slots=True, init=False)
class StructuredOutputs:
    """A constraint on the text of an answer. Exactly one of the fields is set; InvalidArgumentError otherwise.

    Whether it can be served depends on the library and the tokenizer, and is checked when a request is added.
    """

    json: str | None
    """A JSON schema, as text: the answer is a document that it describes, on one line."""
    regex: str | None
    """A regular expression (of Rust's regex crate) that the whole answer matches."""
    choice: tuple[str, ...] | None
    """The answer is one of these strings."""
    grammar: str | None
    """A grammar in llguidance's kind of Lark, or in llama.cpp's GBNF."""
    json_object: bool
    """The answer is some JSON object."""
    structural_tag: str | None
    """Tags, as JSON text. The answer is free until it contains a trigger; then it goes on as a tag with this trigger.
    See `sampling.structural_tags` for the format, which is a part of xgrammar's and vLLM's."""

    @short_traceback
    def __init__(
        self,
        json: str | Mapping[str, Any] | bool | None = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
        grammar: str | None = None,
        json_object: bool = False,
        structural_tag: str | Mapping[str, Any] | None = None,
    ) -> None:
        values = {
            "json": None if json is None else _schema(json),
            "regex": _text("regex", regex),
            "choice": None if choice is None else _choices(choice),
            "grammar": _text("grammar", grammar),
            "json_object": boolean("json_object", json_object),
            "structural_tag": None if structural_tag is None else _structural_tag(structural_tag),
        }
        given = [name for name in _CONSTRAINTS if values[name] not in (None, False)]
        if len(given) != 1:
            raise InvalidArgumentError(
                f"Structured outputs take one of {', '.join(_CONSTRAINTS)}, and {' and '.join(given) or 'none'} was "
                "given. Keep one of them."
            )
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def is_triggered(self) -> bool:
        """Whether the answer is free until it contains a trigger."""
        return self.structural_tag is not None


document_fields(StructuredOutputs)


def _structural_tag(value: object) -> str:
    """Return structural tags as JSON text; the tags themselves are checked when they are compiled."""
    try:
        text = value if isinstance(value, str) else json_module.dumps(value, ensure_ascii=False, allow_nan=False)
        given = json_module.loads(text)
        is_object = isinstance(given, dict)
        text.encode()
        if "\\u" in text:  # may be half of a surrogate pair, which is no text
            json_module.dumps(given, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        is_object = False
    if not is_object:
        refuse("structural_tag", value, "a JSON object", "pass a mapping or its text")
    _check_length("structural_tag", text)
    return text


def _schema(value: object) -> str:
    """Return the schema as one line of JSON in the order of its keys, which is the order of properties in answers."""
    try:
        schema = json_module.loads(value) if isinstance(value, str) else value
        text = json_module.dumps(schema, ensure_ascii=False, allow_nan=False)
        text.encode()
    except RecursionError:
        raise InvalidArgumentError("The JSON schema is nested too deeply; write its inner parts as $defs.") from None
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"The JSON schema is no JSON: {error}. Pass a mapping or its text.") from None
    if not isinstance(schema, Mapping | bool):
        raise InvalidArgumentError(f"A JSON schema is an object, got {text:.80}. Pass a mapping or its text.")
    _check_length("json", text)
    return text


def _text(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(
            f"{name} is {value!r:.80} but must be a non-empty string; leave it out otherwise.", param=name
        )
    _check_length(name, value)
    return value


def _choices(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise InvalidArgumentError(
            f"choice is {value!r:.80} but must be a list of strings; give one or more.", param="choice"
        )
    if not all(isinstance(text, str) and text for text in value):
        raise InvalidArgumentError(
            f"choice is {value!r:.80} but holds something else than non-empty strings.", param="choice"
        )
    if len(value) > MAX_CHOICES:
        raise InvalidArgumentError(
            f"choice has {len(value)} strings but must have at most {MAX_CHOICES}.", param="choice"
        )
    _check_length("choice", "".join(value))
    return tuple(value)


def _check_length(name: str, text: str) -> None:
    if len(text) > MAX_GRAMMAR_CHARS:
        raise InvalidArgumentError(
            f"{name} has {len(text)} characters but must have at most {MAX_GRAMMAR_CHARS}; make it simpler.", param=name
        )


MAX_LOGPROBS = 20
"""The most alternatives a request may ask to see for each token."""

MAX_STOP_STRINGS = 16
"""The most stop strings of a request: each is searched for in every piece of generated text."""

MAX_STOP_TOKEN_IDS = 64
"""The most stop token ids of a request: the sampler's memory is allocated at load."""

MAX_BAD_WORDS = 128
"""The most bad words of a request, for the same reason."""

MAX_LOGIT_BIAS = 512
"""The most token ids that a request may bias, for the same reason."""

MAX_N = 128
"""The most answers to one prompt."""

MAX_SCALE = 1e9
"""The greatest factor or divisor of logits, within the range of float32, in which the sampler computes."""

_NO_EXTRA_ARGS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, init=False)
class SamplingParams:
    """How the tokens of one request are sampled, and when it ends.

    The constructor accepts several notations (`stop="\\n"`, `top_k=-1`); the fields have one of them
    (`stop == ("\\n",)`, `top_k == 0`). Every value out of range raises `InvalidArgumentError`.

    The parameters apply in this order: repetition penalty, then what is added to logits (logit bias, presence and
    frequency penalty), then what excludes tokens (bad words, min_tokens, allowed ids, structured outputs), then
    temperature, top-k, top-p and min-p. Logits processors run before all of these. Log probabilities are the model's,
    after logits processors and before everything else.
    """

    n: int
    """How many answers to write; they share the prompt's keys and values, and differ by their seeds."""
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
    presence_penalty: float
    """Subtracted from the logits of tokens that the output holds; 0 is off."""
    frequency_penalty: float
    """Subtracted from the logits of tokens once for each time that the output holds them; 0 is off."""
    logit_bias: tuple[tuple[int, float], ...]
    """Token ids with what is added to their logits, from -100 to 100."""
    bad_words: tuple[str, ...]
    """Texts that the output never holds in the tokens that they are written with, with and without a space before."""
    allowed_token_ids: tuple[int, ...] | None
    """The only token ids that may be generated; None allows all."""
    structured_outputs: StructuredOutputs | None
    """What the answer's text must look like."""
    logits_processors: tuple[str, ...]
    """Names of plugins that change the logits on the host, in order."""
    extra_args: Mapping[str, Any] = field(hash=False)
    """Arguments for the logits processors."""
    seed: int | None
    """Makes the request's random numbers reproducible, in any batch; None lets the engine choose."""
    max_tokens: int | None
    """The most tokens to generate; None, written -1 too, goes on to the end of the context."""
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
    prompt_logprobs: int | None
    """The same for the prompt's tokens."""
    is_adjusted: bool = field(init=False, repr=False, compare=False)
    """Derived: whether every token needs changed logits or log probabilities."""
    is_masked: bool = field(init=False, repr=False, compare=False)
    """Derived: whether every token needs a mask of allowed ones."""
    is_plain: bool = field(init=False, repr=False, compare=False)
    """Derived: whether no token needs adjusted logits (penalties, bias, masks, logits processors)."""
    looks_back: bool = field(init=False, repr=False, compare=False)
    """Derived: whether a token's logits or mask may depend on the tokens before it, which the host must know first."""

    @short_traceback
    def __init__(
        self,
        n: int = 1,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] | None = None,
        bad_words: Sequence[str] | None = None,
        allowed_token_ids: Sequence[int] | None = None,
        structured_outputs: StructuredOutputs | None = None,
        logits_processors: Sequence[str] | None = None,
        extra_args: Mapping[str, Any] | None = None,
        seed: int | None = None,
        max_tokens: int | None = 16,
        min_tokens: int = 0,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        ignore_eos: bool = False,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
    ) -> None:
        values: dict[str, Any] = {
            "n": integer("n", n, 1, MAX_N, "1 is one answer"),
            "temperature": number("temperature", temperature, 0.0, MAX_SCALE, "0 is greedy and 1 the plain model"),
            "top_k": max(integer("top_k", top_k, -1, None, "0 or -1 turns it off"), 0),
            "top_p": number("top_p", top_p, 0.0, 1.0, "1 turns it off", is_above=True),
            "min_p": number("min_p", min_p, 0.0, 1.0, "0 turns it off"),
            "repetition_penalty": number(
                "repetition_penalty", repetition_penalty, 1 / MAX_SCALE, MAX_SCALE, "1 turns it off"
            ),
            "presence_penalty": number("presence_penalty", presence_penalty, -2.0, 2.0, "0 turns it off"),
            "frequency_penalty": number("frequency_penalty", frequency_penalty, -2.0, 2.0, "0 turns it off"),
            "logit_bias": _logit_bias(logit_bias),
            "bad_words": strings("bad_words", bad_words, MAX_BAD_WORDS, "leave it out for none"),
            "allowed_token_ids": _allowed_token_ids(allowed_token_ids),
            "structured_outputs": _structured_outputs(structured_outputs),
            "logits_processors": strings("logits_processors", logits_processors, 16, "leave it out for none"),
            "extra_args": _extra_args(extra_args),
            "seed": optional("seed", seed, 0, 2**64 - 1, "leave it out for a random one"),
            "max_tokens": _max_tokens(max_tokens),
            "min_tokens": integer("min_tokens", min_tokens, 0, None, "0 turns it off"),
            "stop": strings("stop", stop, MAX_STOP_STRINGS, "leave it out to stop at end of text only"),
            "stop_token_ids": token_ids("stop_token_ids", stop_token_ids, MAX_STOP_TOKEN_IDS),
            "ignore_eos": boolean("ignore_eos", ignore_eos),
            "logprobs": optional("logprobs", logprobs, 0, MAX_LOGPROBS, "leave it out for none"),
            "prompt_logprobs": optional("prompt_logprobs", prompt_logprobs, 0, MAX_LOGPROBS, "leave it out for none"),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check_together()
        self._derive()

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken, so that no random number is needed."""
        return self.temperature == 0.0 or self.top_k == 1

    def _check_together(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidArgumentError(
                f"min_tokens is {self.min_tokens} but max_tokens is {self.max_tokens}: "
                "min_tokens must be at most max_tokens; lower the one or raise the other.",
                param="min_tokens",
            )
        if self.structured_outputs is not None:
            for name in ("min_tokens",) if self.structured_outputs.is_triggered else ("ignore_eos", "min_tokens"):
                if getattr(self, name):
                    raise InvalidArgumentError(
                        f"{name} cannot go with structured_outputs, which say where the answer ends; leave one out.",
                        param=name,
                    )

    def _derive(self) -> None:
        is_penalised = self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        looks_back = is_penalised or bool(self.bad_words)
        is_adjusted = looks_back or bool(self.logit_bias) or self.logprobs is not None
        is_guided = self.structured_outputs is not None and not self.structured_outputs.is_triggered
        is_masked = self.allowed_token_ids is not None or is_guided
        has_processors = bool(self.logits_processors)
        object.__setattr__(self, "looks_back", looks_back or is_guided or has_processors)
        object.__setattr__(self, "is_adjusted", is_adjusted)
        object.__setattr__(self, "is_masked", is_masked)
        is_plain = not (is_adjusted or self.structured_outputs or is_masked or self.min_tokens or has_processors)
        object.__setattr__(self, "is_plain", is_plain)


document_fields(SamplingParams)


def _max_tokens(value: object) -> int | None:
    is_unbounded = value == -1 and not isinstance(value, float)
    return None if is_unbounded else optional("max_tokens", value, 1, None, "-1 goes on to the end of the context")


def _logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    try:
        biases: dict[Any, Any] = dict(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"logit_bias is {value!r:.80} but must map token ids to numbers; write {{1234: -100}}, for instance.",
            param="logit_bias",
        ) from None
    if len(biases) > MAX_LOGIT_BIAS:
        raise InvalidArgumentError(
            f"logit_bias has {len(biases)} ids but must have at most {MAX_LOGIT_BIAS}; keep the vital ones.",
            param="logit_bias",
        )
    ids = token_ids("logit_bias", tuple(biases), None)
    remedy = "-100 all but forbids a token and 100 all but forces it"
    return tuple((id, number("logit_bias", biases[id], -100.0, 100.0, remedy)) for id in ids)


def _allowed_token_ids(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    ids = token_ids("allowed_token_ids", value, None)
    if not ids:
        raise InvalidArgumentError(
            "allowed_token_ids is empty, which allows nothing; leave it out to allow all.", param="allowed_token_ids"
        )
    return ids


def _structured_outputs(value: object) -> StructuredOutputs | None:
    if value is None or isinstance(value, StructuredOutputs):
        return value
    raise InvalidArgumentError(
        f"structured_outputs is {value!r:.80} but must be a StructuredOutputs; write StructuredOutputs(json=…).",
        param="structured_outputs",
    )


def _extra_args(value: object) -> Mapping[str, Any]:
    if value is None:
        return _NO_EXTRA_ARGS
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(
            f"extra_args is {value!r:.80} but must map names to values; leave it out for none.", param="extra_args"
        )
    return MappingProxyType(dict(value))


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
        param_name: generation[field_name]
        for field_name, param_name in SAMPLING_FIELDS.items()
        if generation.get(field_name) is not None
    }
    do_sample = generation.get("do_sample")
    if do_sample is not None and not isinstance(do_sample, bool):
        raise ConfigError(f"do_sample is {do_sample!r} in generation_config.json; write true or false.")
    for field_name, param_name in SAMPLING_FIELDS.items():
        if param_name in defaults:
            _check_default(field_name, param_name, defaults[param_name])
    if do_sample is False:
        defaults["temperature"] = 0.0
    return defaults


def with_defaults(defaults: Mapping[str, Any], requested: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a request's `requested` arguments for SamplingParams with the model's `defaults`.

    If the least and the most number of tokens contradict each other, the default is adjusted to the request. `None` in
    `requested` means that the argument was not given.
    """
    requested = {name: value for name, value in requested.items() if value is not None}
    merged = {**defaults, **requested}
    if requested.get("structured_outputs") is not None and "min_tokens" not in requested:
        merged.pop("min_tokens", None)  # structured outputs define the end of the answer
    min_tokens, max_tokens = merged.get("min_tokens"), merged.get("max_tokens")
    if isinstance(min_tokens, int) and isinstance(max_tokens, int) and 0 < max_tokens < min_tokens:
        if "max_tokens" not in requested:
            merged["max_tokens"] = min_tokens
        elif "min_tokens" not in requested:
            merged["min_tokens"] = max_tokens
    return merged


def _check_default(field_name: str, param_name: str, value: Any) -> None:
    try:
        # Without a maximum: the default of max_tokens would be compared with min_tokens.
        SamplingParams(**{"max_tokens": None, param_name: value})
    except InvalidArgumentError as error:
        renamed = f" ({field_name} is {param_name} here)" if field_name != param_name else ""
        raise ConfigError(f"generation_config.json has a value that cannot be used{renamed}: {error}") from None

"""Structured output: compiled grammars that give the allowed next tokens, by llguidance (Microsoft, MIT licence).

The library is an extra, imported when a request first asks for structured output. It walks a lexer and an Earley parser
along the trie of all tokens, and writes one bit per token.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from aethermind.errors import InvalidArgumentError
from aethermind.first_party import pip_install
from aethermind.sampling.json_schemas import with_discriminators, with_safe_bounds, without_noop_keywords
from aethermind.sampling.unproductive_rules import unproductive_rules

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.sampling.params import StructuredOutputs

__all__ = ["Grammars", "TokenGuide"]

_MAX_CACHED = 128
"""The most compiled grammars in the LRU cache."""

# Each bounds memory or the time of one mask; a grammar that needs more is refused, or ends its request.
_LIMITS = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}

# The library checks the tokens of a slice one by one only if the grammar does not allow the whole slice. Its default
# slices hold strings of up to 10 and 30 characters; shorter bounds on a string would have all of them checked.
_IN_STRING = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_IN_STRING}{{1,{length}}}" for length in (2, 4, 7, 10, 16, 30)),
    f"{_IN_STRING}+",
]

_NO_MORE_BYTES = "NoExtensionBias"
"""The library's error for a grammar state that no text continues."""

_MANY_FORCED = "ff_tokens"
"""The name in the library's error when forced tokens exceed a limit."""

_ONE_OF = "coerce_one_of"
"""An option that the library's error recommends; users of this engine cannot set it."""

_MAX_FORCED = 64
"""How many rounds of forced tokens are checked before a grammar is accepted."""

# With flexible white space, weak models write it endlessly.
_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammars:
    """Compiles structured outputs for one model's tokens. The first use reads the vocabulary, which may take seconds.

    Copies of a compiled grammar share its lexer, and so wait for each other. If several threads write masks, guides are
    distributed over as many lanes, and a grammar is compiled once for each lane that uses it.
    """

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        vocab_size: int,
        eos_token_ids: Collection[int],
        *,
        num_lanes: int = 1,
    ) -> None:
        """`tokenizer_json` returns the tokenizer as tokenizer.json; `vocab_size` is the width of the logits."""
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._compiled: OrderedDict[tuple[StructuredOutputs, int], Any] = OrderedDict()
        self._lanes: list[WeakSet[TokenGuide]] = [WeakSet() for _ in range(num_lanes)]
        self._lock = threading.Lock()

    def guide(self, wanted: StructuredOutputs) -> TokenGuide:
        """Return a guide at the start of an answer; InvalidArgumentError gives the reason if there can be none."""
        return self._guide(wanted, self._freest_lane())

    def prepare(self, wanted: StructuredOutputs) -> Future[TokenGuide]:
        """Compile a guide in a thread, because some grammars take seconds; one that is cached is returned at once."""
        lane = self._freest_lane()
        if (wanted, lane) not in self._compiled:
            return self._thread.submit(self.guide, wanted)
        done: Future[TokenGuide] = Future()
        done.set_result(self._guide(wanted, lane))
        return done

    def _freest_lane(self) -> int:
        return min(range(len(self._lanes)), key=lambda index: len(self._lanes[index]))

    def _guide(self, wanted: StructuredOutputs, lane: int) -> TokenGuide:
        matcher = self._compiled.get((wanted, lane)) or self._compile(wanted)
        end = self._eos_token_ids[0] if len(self._eos_token_ids) == 1 else None
        guide = TokenGuide(matcher.deep_copy(), end, lane)
        with self._lock:
            self._compiled[wanted, lane] = matcher
            self._compiled.move_to_end((wanted, lane))
            if len(self._compiled) > _MAX_CACHED:
                self._compiled.popitem(last=False)
            self._lanes[lane].add(guide)
        return guide

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "grammars")

    @cached_property
    def _library(self) -> Any:
        try:
            return import_module("llguidance")
        except ImportError as error:
            raise InvalidArgumentError(
                f"Structured output needs llguidance, which cannot be imported ({error}). "
                f"Run `{pip_install('aethermind-core[structured]')}`."
            ) from None

    @cached_property
    def _tokens(self) -> Any:
        if not self._eos_token_ids:
            raise InvalidArgumentError(
                "Structured output needs a model with an end-of-text token, and this one's config.json, "
                "generation_config.json and tokenizer name none. Set eos_token_id in config.json."
            )
        try:
            tokenizer_json = _without_unicode_forms(self._tokenizer_json())
            return self._library.LLTokenizer(
                tokenizer_json, n_vocab=self._vocab_size, eos_token=self._eos_token_ids, slices=_SLICES
            )
        except (ValueError, RuntimeError) as error:
            raise InvalidArgumentError(
                f"llguidance cannot read this model's tokenizer: {_flat(error)}. Structured output is not possible."
            ) from error

    def _compile(self, wanted: StructuredOutputs) -> Any:
        library, tokens = self._library, self._tokens
        try:
            grammar = _grammar(library.LLMatcher, wanted)
        except (ValueError, RecursionError) as error:
            raise _refused(error) from None
        matcher = library.LLMatcher(tokens, grammar, log_level=0, limits=library.LLParserLimits(**_LIMITS))
        if reason := _dead_end(matcher):
            raise _refused(reason)
        return matcher


class TokenGuide:
    """The state of one answer in its grammar.

    `eos_token_id` is the only token that ends answers, None if there are several. Guides of different lanes can be used
    concurrently.
    """

    __slots__ = ("__weakref__", "_eos_token_id", "_matcher", "_num_consumed", "lane")

    def __init__(self, matcher: Any, eos_token_id: int | None, lane: int) -> None:
        self.lane = lane
        self._matcher = matcher
        self._eos_token_id = eos_token_id
        self._num_consumed = 0

    def fork(self) -> TokenGuide:
        """Return a copy in the same state."""
        copy = TokenGuide(self._matcher.deep_copy(), self._eos_token_id, self.lane)
        copy._num_consumed = self._num_consumed
        return copy

    def fill(self, output_token_ids: Sequence[int], mask: npt.NDArray[np.int32]) -> str | None:
        """Write the tokens that may follow the answer so far: bit t % 32 of mask[t // 32] for token t, int32 [V / 32].

        Returns why the answer cannot go on: a token that the grammar does not allow, or an exceeded limit.
        """
        matcher = self._follow(output_token_ids)
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if not matcher.is_error():
            return None
        error = _flat(matcher.get_error()) or "the grammar is exhausted"
        return "the structured output allows no text behind this" if error == _NO_MORE_BYTES else error

    def forced(self, output_token_ids: Sequence[int]) -> list[int]:
        """Return the tokens that must follow the answer so far; none if there is a choice.

        The library tokenises the forced bytes as the tokenizer does, up to where later bytes could change the tokens;
        masks allow exactly these tokens, one after the other.
        """
        matcher = self._follow(output_token_ids)
        if matcher.is_error():
            return []
        tokens: list[int] = matcher.compute_ff_tokens()
        if tokens:
            matcher.consume_tokens(tokens)
            self._num_consumed += len(tokens)
        if matcher.is_stopped() and not matcher.is_error() and self._eos_token_id is not None:
            tokens.append(self._eos_token_id)
        return tokens

    def _follow(self, output_token_ids: Sequence[int]) -> Any:
        """Return the matcher, advanced by the answer so far."""
        if len(output_token_ids) > self._num_consumed:
            self._matcher.consume_tokens(list(output_token_ids[self._num_consumed :]))
            self._num_consumed = len(output_token_ids)
        return self._matcher


def _without_unicode_forms(tokenizer_json: str) -> str:
    """Return the tokenizer without Unicode normalisation of answers, which would compose or decompose (é, e + ´) text.

    With NFC, as in Qwen's tokenizers, text that a grammar demands in another form would be offered as tokens of NFC,
    which the grammar then refuses.
    """
    tokenizer = json.loads(tokenizer_json)
    if (tokenizer.get("normalizer") or {}).get("type") in ("NFC", "NFD", "NFKC", "NFKD"):
        tokenizer["normalizer"] = None
        return json.dumps(tokenizer, ensure_ascii=False)
    return tokenizer_json


def _grammar(matcher: Any, wanted: StructuredOutputs) -> str:
    if wanted.json is not None:
        schema = {} if wanted.json == "true" else json.loads(wanted.json)
        if schema is False:
            raise ValueError("the schema false describes nothing")
        kept = json.dumps(with_safe_bounds(with_discriminators(without_noop_keywords(schema))))
        return str(matcher.grammar_from_json_schema(kept, overrides=_JSON_OPTIONS))
    if wanted.json_object:
        return str(matcher.grammar_from_json_schema('{"type": "object"}', overrides=_JSON_OPTIONS))
    if wanted.regex is not None:
        return str(matcher.grammar_from_regex(wanted.regex))
    if wanted.choice is not None:
        # A JSON string is a string of Lark's too.
        alternatives = " | ".join(json.dumps(text, ensure_ascii=False) for text in wanted.choice)
        return str(matcher.grammar_from_lark(f"start: {alternatives}"))
    gbnf = import_module("llguidance.gbnf_to_lark")
    try:
        lark = gbnf.any_to_lark(wanted.grammar)
    except gbnf.GbnfToLarkError as error:
        raise ValueError(str(error)) from None
    if unproductive := unproductive_rules(lark):
        raise ValueError(f"the rule {unproductive[0]} never ends")  # no finite text matches it
    return str(matcher.grammar_from_lark(lark))


def _dead_end(matcher: Any) -> str | None:
    """Return why no answer reaches the first choice: the forced beginning is a dead end, or exceeds the limits."""
    walker = matcher.deep_copy()
    for _ in range(_MAX_FORCED):
        if not walker.is_error():
            walker.compute_bitmask()
        tokens = [] if walker.is_error() else walker.compute_ff_tokens()
        if not tokens or walker.is_error():
            break
        walker.consume_tokens(tokens)
        if walker.is_stopped():
            break
    return str(walker.get_error()) if walker.is_error() else None


def _refused(error: object) -> InvalidArgumentError:
    reason = _flat(error)[:400]
    if reason == _NO_MORE_BYTES:
        reason = "no text satisfies it"
    elif _ONE_OF in reason:
        reason = "alternatives of a oneOf may overlap; write anyOf, or require a property of each that tells them apart"
    elif _MANY_FORCED in reason:
        reason = "what it demands before there is a choice has no end, or is too long"
    return InvalidArgumentError(
        f"The structured output cannot be served: {reason}. Change or simplify what is asked for."
    )


def _flat(error: object) -> str:
    return " ".join(str(error).replace("<non-verbose/>", "").split()).rstrip(".")

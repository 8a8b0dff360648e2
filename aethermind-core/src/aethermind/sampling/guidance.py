"""Grammars that say which tokens may come next, by llguidance (Microsoft, MIT licence).

The library is an extra, imported when a request first asks for structured output. It walks a lexer and an Earley parser
along the trie of all tokens, and writes one bit a token.
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
from aethermind.plugins.first_party import pip_install
from aethermind.sampling.endless_rules import endless_rules
from aethermind.sampling.json_schemas import with_near_bounds, with_tags, without_idle_words

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.sampling.structured import StructuredOutputs

__all__ = ["Grammars", "TokenGuide"]

_MAX_CACHED = 128
"""Grammars kept compiled, because requests tend to repeat them."""

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

# The library looks at the tokens of a slice one by one only where the grammar does not allow all of it. Its own slices
# of strings hold tokens of up to 10 and 30 characters: what bounds a string more tightly has all of them looked at.
_IN_STRING = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_IN_STRING}{{1,{length}}}" for length in (2, 4, 7, 10, 16, 30)),
    f"{_IN_STRING}+",
]

_NO_MORE_BYTES = "NoExtensionBias"
"""What the library says where a grammar leads to a place from which no text goes on."""

_MANY_FORCED = "ff_tokens"
"""What its message names where a limit is exceeded by what a grammar leaves no choice about."""

_ONE_OF = "coerce_one_of"
"""An option of the library that its message advises; whoever asks for an answer cannot give it."""

_MAX_FORCED = 64
"""How many times what is forced is followed by more of it before a grammar is taken."""

# Weak models, once allowed to, write white space for ever.
_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammars:
    """Compiles demands for one model's tokens. The first reads the vocabulary, which takes seconds if it is large.

    Copies of a compiled grammar share its lexer, and so wait for each other. Where several threads make masks, guides
    are spread over as many lanes, and a grammar is compiled once for each lane that asks for it.
    """

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        vocab_size: int,
        eos_token_ids: Collection[int],
        *,
        num_lanes: int = 1,
    ) -> None:
        """`tokenizer_json` returns the tokenizer in the form of tokenizer.json; `vocab_size` is the width of logits."""
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._compiled: OrderedDict[tuple[StructuredOutputs, int], Any] = OrderedDict()
        self._lanes: list[WeakSet[TokenGuide]] = [WeakSet() for _ in range(num_lanes)]
        self._lock = threading.Lock()

    def guide(self, wanted: StructuredOutputs) -> TokenGuide:
        """A guide at the beginning of an answer; InvalidArgumentError says why a demand cannot be served."""
        return self._guide(wanted, self._freest_lane())

    def prepare(self, wanted: StructuredOutputs) -> Future[TokenGuide]:
        """The same from a thread, as some grammars take seconds; at once where it was compiled before."""
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
    """Where one answer stands in its grammar. `eos_token_id` is the only token that ends answers, None if there are
    several. Guides of different lanes can be asked at the same time.
    """

    __slots__ = ("__weakref__", "_eos_token_id", "_matcher", "_num_consumed", "lane")

    def __init__(self, matcher: Any, eos_token_id: int | None, lane: int) -> None:
        self.lane = lane
        self._matcher = matcher
        self._eos_token_id = eos_token_id
        self._num_consumed = 0

    def fork(self) -> TokenGuide:
        """A guide of its own at the same place."""
        copy = TokenGuide(self._matcher.deep_copy(), self._eos_token_id, self.lane)
        copy._num_consumed = self._num_consumed
        return copy

    def fill(self, output_token_ids: Sequence[int], mask: npt.NDArray[np.int32]) -> str | None:
        """Write which tokens may follow the answer so far: bit t % 32 of mask[t // 32] for token t, int32 [V / 32].

        Returns why the answer cannot go on: a token that the grammar does not allow, or one of the limits.
        """
        matcher = self._follow(output_token_ids)
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if not matcher.is_error():
            return None
        error = _flat(matcher.get_error()) or "the grammar is exhausted"
        return "the structured output allows no text behind this" if error == _NO_MORE_BYTES else error

    def forced(self, output_token_ids: Sequence[int]) -> list[int]:
        """The tokens that have to follow the answer so far; none where there is a choice.

        The library cuts the bytes that the grammar forces as the tokenizer does, up to where bytes that are not known
        yet could change the cut; masks allow these very tokens, one after the other.
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
        """The matcher behind the answer so far."""
        if len(output_token_ids) > self._num_consumed:
            self._matcher.consume_tokens(list(output_token_ids[self._num_consumed :]))
            self._num_consumed = len(output_token_ids)
        return self._matcher


def _without_unicode_forms(tokenizer_json: str) -> str:
    """The tokenizer as it is for answers: what a grammar demands is not composed or decomposed (é, e + ´) on the way.

    With NFC, as Qwen's tokenizers have it, text that is demanded in another form would be offered as tokens of NFC,
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
        kept = json.dumps(with_near_bounds(with_tags(without_idle_words(schema))))
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
    if endless := endless_rules(lark):
        raise ValueError(f"the rule {endless[0]} never ends")
    return str(matcher.grammar_from_lark(lark))


def _dead_end(matcher: Any) -> str | None:
    """Why an answer cannot get to its first choice: what all answers begin with leads nowhere or exceeds the limits."""
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

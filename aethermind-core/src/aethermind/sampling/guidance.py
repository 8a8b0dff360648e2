"""Structured output: compiled grammars that compute the allowed next tokens, by llguidance (Microsoft, MIT licence).

The library is an extra, imported when a request first asks for structured output. It walks a lexer and an Earley parser
along the trie of all tokens, and writes one bit per token.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakSet

from aethermind.errors import InvalidArgumentError
from aethermind.first_party import pip_install_command
from aethermind.log import get_logger
from aethermind.sampling.structural_tags import StructuralTags, TriggeredGuide, json_grammar, parse_tags

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.sampling.params import StructuredOutputs

_Result = TypeVar("_Result")

__all__ = [
    "Grammars",
    "Guide",
    "TokenGuide",
    "unproductive_rules",
]

_MAX_CACHED = 128
"""The most compiled grammars in the LRU cache."""

# Each limits memory, or the time of one mask. A grammar that exceeds one is refused, or ends its request.
_LIMITS = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}

# Slices are sets of tokens that match an expression. The library checks the tokens of a slice one by one only if the
# grammar does not allow all of them. Its default slices have strings of up to 10 and 30 characters; for a string with
# a lower limit it would check all tokens, so that there are shorter slices here.
_IN_STRING = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_IN_STRING}{{1,{length}}}" for length in (2, 4, 7, 10, 16, 30)),
    f"{_IN_STRING}+",
]

_NO_CONTINUATION = "NoExtensionBias"
"""The library's error for a grammar state in which no text may follow."""

_TOO_MANY_FORCED = "ff_tokens"
"""The name in the library's error when forced tokens exceed a limit."""

_COERCE_ONE_OF = "coerce_one_of"
"""An option that the library's error recommends; users of this engine cannot set it."""

_MAX_FORCED_ROUNDS = 64
"""How many times the forced tokens of a grammar are followed before it is accepted."""


class Grammars:
    """Compiles structured outputs for one model's tokens. The first use reads the vocabulary, which may take seconds.

    Copies of a compiled grammar share a lexer with a lock, so that threads with copies wait for each other. If several
    threads write masks, guides are distributed over as many *lanes*: each lane has its own compiled grammars, and is
    used by one thread at a time.
    """

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        vocab_size: int,
        eos_token_ids: Collection[int],
        *,
        num_lanes: int = 1,
        token_bytes: Callable[[int], bytes] | None = None,
        token_to_id: Callable[[str], int | None] | None = None,
    ) -> None:
        """`tokenizer_json` returns the tokenizer as tokenizer.json; `vocab_size` is the width of the logits.

        Structural tags need `token_bytes`, the text of a token with those of special tokens, and `token_to_id`.
        """
        self._token_bytes, self._token_to_id = token_bytes, token_to_id
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._compiled: OrderedDict[tuple[StructuredOutputs, int], Any] = OrderedDict()
        self._lanes: list[WeakSet[Guide]] = [WeakSet() for _ in range(num_lanes)]
        self._lock = threading.Lock()
        self._num_compiling = 0
        self._warned: set[str] = set()

    def guide(self, structured_outputs: StructuredOutputs) -> Guide:
        """Return a guide at the start of an answer; InvalidArgumentError if the structured outputs cannot be served."""
        return self._guide(structured_outputs, self._least_used_lane())

    def prepare(self, structured_outputs: StructuredOutputs) -> Future[Guide]:
        """Compile a grammar in a thread, because some take seconds. A cached grammar gives a completed future.

        So do lenient structural tags, which are needed only when a trigger occurs, unless other grammars are compiled
        before: a step would wait for all of them.
        """
        lane = self._least_used_lane()
        text = structured_outputs.structural_tag
        is_lenient = text is not None and parse_tags(text).is_lenient
        if (structured_outputs, lane) not in self._compiled and not is_lenient:
            return self._in_thread(self.guide, structured_outputs)
        is_busy = self._num_compiling > 0
        guide, prepared = self._guide(structured_outputs, lane), Future[Guide]()

        def complete(_: object = None) -> None:
            if prepared.set_running_or_notify_cancel():
                prepared.set_result(guide)

        if is_busy and isinstance(guide, TriggeredGuide):
            guide.compiled.add_done_callback(complete)
        else:
            complete()
        return prepared

    def _in_thread(self, function: Callable[..., _Result], *arguments: Any) -> Future[_Result]:
        """Run a function in the thread that compiles, behind those that were given before."""
        with self._lock:
            self._num_compiling += 1
        future = self._compiler_thread.submit(function, *arguments)
        future.add_done_callback(self._end_compiling)
        return future

    def _end_compiling(self, _: object) -> None:
        with self._lock:
            self._num_compiling -= 1

    def _least_used_lane(self) -> int:
        return min(range(len(self._lanes)), key=lambda index: len(self._lanes[index]))

    def _guide(self, structured_outputs: StructuredOutputs, lane: int) -> Guide:
        compiled: Any = self._compiled.get((structured_outputs, lane))
        guide: Guide
        if structured_outputs.structural_tag is not None:
            tags = parse_tags(structured_outputs.structural_tag)
            compiled = compiled or self._compile_tags(tags)
            assert self._token_bytes is not None
            assert self._token_to_id is not None
            is_single = {trigger: self._token_to_id(trigger) is not None for trigger in tags.tags}
            guide = TriggeredGuide(tags, compiled, self._token_bytes, is_single, lane)
        else:
            compiled = compiled or self._compile(structured_outputs)
            eos_token_id = self._eos_token_ids[0] if len(self._eos_token_ids) == 1 else None
            guide = TokenGuide(compiled.deep_copy(), eos_token_id, lane)
        with self._lock:
            self._compiled[structured_outputs, lane] = compiled
            self._compiled.move_to_end((structured_outputs, lane))
            if len(self._compiled) > _MAX_CACHED:
                self._compiled.popitem(last=False)
            self._lanes[lane].add(guide)
        return guide

    @cached_property
    def _compiler_thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "grammars")

    @cached_property
    def _library(self) -> Any:
        """The module llguidance."""
        try:
            return import_module("llguidance")
        except ImportError as error:
            raise InvalidArgumentError(
                f"Structured output needs llguidance, which cannot be imported ({error}). "
                f"Run `{pip_install_command('aethermind-core[structured]')}`."
            ) from None

    @cached_property
    def _tokens(self) -> Any:
        """The vocabulary in the library's form."""
        return self._read_tokens(self._tokenizer_json())

    @cached_property
    def _tokens_of_text(self) -> Any:
        """The vocabulary without texts of added tokens, for constraints that have such a text in them.

        The library lets no text match an added token, and yet tokenises text that it forces to added tokens, which it
        then refuses. Without the names of added tokens, the text is ordinary tokens.
        """
        return self._read_tokens(_with_renamed_tokens(self._tokenizer_json(), self._added_tokens))

    def _read_tokens(self, tokenizer_json: str) -> Any:
        if not self._eos_token_ids:
            raise InvalidArgumentError(
                "Structured output needs a model with an end-of-text token, and this one's config.json, "
                "generation_config.json and tokenizer name none. Set eos_token_id in config.json."
            )
        try:
            return self._library.LLTokenizer(
                _without_unicode_normalization(tokenizer_json),
                n_vocab=self._vocab_size,
                eos_token=self._eos_token_ids,
                slices=_SLICES,
            )
        except (ValueError, RuntimeError) as error:
            raise InvalidArgumentError(
                f"llguidance cannot read this model's tokenizer: {_one_line(error)}. Structured output is not possible."
            ) from error

    @cached_property
    def _added_tokens(self) -> dict[str, int]:
        """The ids of the tokens outside of the vocabulary of text, by their text."""
        added = json.loads(self._tokenizer_json()).get("added_tokens", ())
        return {token["content"]: token["id"] for token in added if token["id"] < self._vocab_size}

    def _compile(self, structured_outputs: StructuredOutputs) -> Any:
        try:
            grammar = _grammar(self._library.LLMatcher, structured_outputs)
        except (ValueError, RecursionError) as error:
            raise _grammar_error(error) from None
        text = _texts(structured_outputs)
        has_added_token = any(name in text for name in self._added_tokens)
        return self._matcher(grammar, self._tokens_of_text if has_added_token else self._tokens)

    def _compile_tags(self, tags: StructuralTags) -> Future[dict[str, Any]]:
        """Compile the matcher of each trigger; lenient tags in a thread."""
        if tags.is_lenient:
            return self._in_thread(self._lenient_matchers, tags)
        compiled: Future[dict[str, Any]] = Future()
        compiled.set_result({trigger: self._tag_matcher(tags, trigger) for trigger in tags.tags})
        return compiled

    def _lenient_matchers(self, tags: StructuralTags) -> dict[str, Any]:
        """Compile the matcher of each trigger; one that cannot be compiled even for any object is left out."""
        matchers: dict[str, Any] = {}
        try:
            _ = self._tokens
        except InvalidArgumentError as error:
            self._warn_once(f"Tool calls are not constrained. {error}")
            return matchers
        for trigger in tags.tags:
            for is_strict in (True, False):
                try:
                    matchers[trigger] = self._tag_matcher(tags, trigger, is_strict=is_strict)
                    break
                except Exception as error:  # of the library too: the answer is free then
                    freed = "Objects in tags are" if is_strict else "Text in tags is"
                    self._warn_once(f"{freed} not constrained (trigger {trigger!r}). {error}")
        return matchers

    def _warn_once(self, message: str) -> None:
        if message not in self._warned and len(self._warned) < _MAX_CACHED:
            self._warned.add(message)
            get_logger(__name__).warning(message)

    def _tag_matcher(self, tags: StructuralTags, trigger: str, *, is_strict: bool = True) -> Any:
        lark = tags.grammar(trigger, self._added_tokens, is_strict=is_strict)
        return self._matcher(self._library.LLMatcher.grammar_from_lark(lark), self._tokens)

    def _matcher(self, grammar: str, tokens: Any) -> Any:
        library = self._library
        matcher = library.LLMatcher(tokens, grammar, log_level=0, limits=library.LLParserLimits(**_LIMITS))
        if reason := _invalid_start(matcher):
            raise _grammar_error(reason)
        return matcher


Guide: TypeAlias = "TokenGuide | TriggeredGuide"


class TokenGuide:
    """The state of a grammar (llguidance: matcher) after the tokens of one answer.

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

    def is_active(self, output_token_ids: Sequence[int]) -> bool:
        """Whether the next token is constrained: always."""
        return True

    def num_free(self, output_token_ids: Sequence[int], next_token_ids: Sequence[int]) -> int:
        """Return how many of the tokens that may follow leave the token after them without constraint: none."""
        return 0

    def fill(self, output_token_ids: Sequence[int], mask: npt.NDArray[np.int32]) -> str | None:
        """Write the tokens that may follow the answer so far: bit t % 32 of mask[t // 32] for token t, int32 [V / 32].

        Returns None, or why the answer cannot continue: it has a token that the grammar does not allow, or a limit is
        exceeded.
        """
        matcher = self._advance(output_token_ids)
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if not matcher.is_error():
            return None
        error = _one_line(matcher.get_error()) or "the grammar is exhausted"
        return "the structured output allows no text after this" if error == _NO_CONTINUATION else error

    def forced(self, output_token_ids: Sequence[int]) -> list[int]:
        """Return the tokens that must follow the answer so far; none if several tokens may follow.

        The library tokenises the forced bytes as the tokenizer does, up to where later bytes could change the tokens;
        masks allow exactly these tokens, one after the other.
        """
        matcher = self._advance(output_token_ids)
        if matcher.is_error():
            return []
        tokens: list[int] = matcher.compute_ff_tokens()
        if tokens:
            matcher.consume_tokens(tokens)
            self._num_consumed += len(tokens)
        if matcher.is_stopped() and not matcher.is_error() and self._eos_token_id is not None:
            tokens.append(self._eos_token_id)
        return tokens

    def _advance(self, output_token_ids: Sequence[int]) -> Any:
        """Return the matcher, advanced by the answer so far."""
        if len(output_token_ids) > self._num_consumed:
            self._matcher.consume_tokens(list(output_token_ids[self._num_consumed :]))
            self._num_consumed = len(output_token_ids)
        return self._matcher


def _texts(structured_outputs: StructuredOutputs) -> str:
    """Return the text that a constraint is made of, without escapes; empty for grammars, which may name tokens."""
    written = (structured_outputs.json, structured_outputs.regex, *(structured_outputs.choice or ()))
    return "\n".join(filter(None, written)).replace("\\", "")


def _with_renamed_tokens(tokenizer_json: str, names: Collection[str]) -> str:
    """Return the tokenizer with added tokens of other names, which occur in no text; their ids are the same."""
    tokenizer = json.loads(tokenizer_json)
    renamed = {name: f"\ue000{name}\ue000" for name in names}
    for token in tokenizer.get("added_tokens", ()):
        token["content"] = renamed.get(token["content"], token["content"])
    model = tokenizer["model"]
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {renamed.get(piece, piece): token_id for piece, token_id in vocab.items()}
    elif isinstance(vocab, list):  # of a unigram model, with scores
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") is not None:
        model["unk_token"] = renamed.get(model["unk_token"], model["unk_token"])
    return json.dumps(tokenizer, ensure_ascii=False)


def _without_unicode_normalization(tokenizer_json: str) -> str:
    """Return the tokenizer without Unicode normalisation, which composes or decomposes characters (é, e + ´).

    With NFC, as in Qwen's tokenizers, text that a grammar requires in another form would be offered as tokens in NFC,
    which the grammar then refuses.
    """
    tokenizer = json.loads(tokenizer_json)
    if (tokenizer.get("normalizer") or {}).get("type") in ("NFC", "NFD", "NFKC", "NFKD"):
        tokenizer["normalizer"] = None
        return json.dumps(tokenizer, ensure_ascii=False)
    return tokenizer_json


def _grammar(matcher: Any, structured_outputs: StructuredOutputs) -> str:
    """Return structured outputs as a grammar of the library; ValueError says why there is none."""
    if structured_outputs.json is not None:
        schema = {} if structured_outputs.json == "true" else json.loads(structured_outputs.json)
        if schema is False:
            raise ValueError("the schema false describes nothing")
        return str(matcher.grammar_from_json_schema(json_grammar(schema)))
    if structured_outputs.json_object:
        return str(matcher.grammar_from_json_schema(json_grammar({"type": "object"})))
    if structured_outputs.regex is not None:
        return str(matcher.grammar_from_regex(structured_outputs.regex))
    if structured_outputs.choice is not None:
        # A JSON string is a string of Lark's too.
        alternatives = " | ".join(json.dumps(text, ensure_ascii=False) for text in structured_outputs.choice)
        return str(matcher.grammar_from_lark(f"start: {alternatives}"))
    gbnf = import_module("llguidance.gbnf_to_lark")
    try:
        lark = gbnf.any_to_lark(structured_outputs.grammar)
    except gbnf.GbnfToLarkError as error:
        raise ValueError(str(error)) from None
    if unproductive := unproductive_rules(lark):
        raise ValueError(f"the rule {unproductive[0]} never ends")
    return str(matcher.grammar_from_lark(lark))


def _invalid_start(matcher: Any) -> str | None:
    """Return why no answer exists, else None: the forced beginning cannot be continued, or exceeds the limits."""
    matcher_copy = matcher.deep_copy()
    for _ in range(_MAX_FORCED_ROUNDS):
        if not matcher_copy.is_error():
            matcher_copy.compute_bitmask()
        tokens = [] if matcher_copy.is_error() else matcher_copy.compute_ff_tokens()
        if not tokens or matcher_copy.is_error():
            break
        matcher_copy.consume_tokens(tokens)
        if matcher_copy.is_stopped():
            break
    return str(matcher_copy.get_error()) if matcher_copy.is_error() else None


def _grammar_error(error: object) -> InvalidArgumentError:
    """Return the error for structured outputs that the library refuses, with its reason in users' terms."""
    reason = _one_line(error)[:400]
    if reason == _NO_CONTINUATION:
        reason = "no text satisfies it"
    elif _COERCE_ONE_OF in reason:
        reason = "alternatives of a oneOf may overlap; write anyOf, or require a property of each that tells them apart"
    elif _TOO_MANY_FORCED in reason:
        reason = "what it demands before there is a choice has no end, or is too long"
    return InvalidArgumentError(
        f"The structured output cannot be served: {reason}. Change or simplify what is asked for."
    )


def _one_line(error: object) -> str:
    return " ".join(str(error).replace("<non-verbose/>", "").split()).rstrip(".")


_LARK_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*)"""
    r"""|(?P<text>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/[a-z]*|<[^>\n]*>)"""
    r"""|(?P<name>[?!]?[A-Za-z_]\w*)"""
    r"""|(?P<other>->|.)"""
)
_OPENING, _CLOSING = "([{", ")]}"


def unproductive_rules(lark: str) -> list[str]:
    """Return the names of unproductive rules of a grammar in Lark's notation, in order.

    No finite text matches such a rule, because every alternative recurs. llguidance does not terminate on a rule like
    that if it can begin with the empty text, so grammars with one are refused. Syntax that this check does not know
    counts as productive.
    """
    rules = dict(_split_rules(list(_lark_tokens(lark))))
    productive: set[str] = set()
    while found := [
        name for name, body in rules.items() if name not in productive and _is_productive(body, rules, productive)
    ]:
        productive.update(found)
    return [name for name in rules if name not in productive]


def _lark_tokens(lark: str) -> Iterator[str]:
    """Yield the tokens of a grammar: names and punctuation, and `""` for each string or regular expression."""
    for match in _LARK_TOKEN.finditer(lark):
        if match.lastgroup == "text":
            yield '""'
        elif match.lastgroup != "skip":
            yield match.group()


def _split_rules(tokens: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each rule's name and the tokens after its colon."""
    starts = [(index, colon) for index in range(len(tokens)) if (colon := _colon_after_name(tokens, index))]
    ends = [index for index, _ in starts[1:]] + [len(tokens)]
    for (index, colon), end in zip(starts, ends, strict=False):
        yield tokens[index].lstrip("?!"), tokens[colon + 1 : end]


def _colon_after_name(tokens: Sequence[str], index: int) -> int | None:
    """Return the index of the colon after a rule's name at `index`, its attributes and priority; None elsewhere."""
    if not tokens[index].lstrip("?!").isidentifier():
        return None
    position = index + 1
    if tokens[position : position + 1] in (["["], ["{"], ["."]):
        while position < len(tokens) and tokens[position] not in ("]", "}", ":", "|"):
            position += 1
        position += tokens[position : position + 1] in (["]"], ["}"])
    return position if tokens[position : position + 1] == [":"] else None


def _is_productive(body: Sequence[str], rules: Mapping[str, object], productive: Collection[str]) -> bool:
    """Whether some alternative of a rule's body consists of productive rules only."""
    depth, is_finite = 0, True
    for index, token in enumerate(body):
        if body[max(index - 1, 0)] == "->":  # this token is the name of the alternative
            continue
        if token in _OPENING:
            depth += 1
        elif token in _CLOSING:
            depth -= 1
        elif token == "%" or depth < 0:
            return True
        elif depth:
            continue
        elif token == "|":
            if is_finite:
                return True
            is_finite = True
        elif (
            token in rules
            and token not in productive
            and body[index + 1 : index + 2] not in (["?"], ["*"], ["{"], ["~"])
        ):
            is_finite = False
    return is_finite

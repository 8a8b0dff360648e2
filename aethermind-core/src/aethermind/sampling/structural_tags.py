"""Structural tags: an answer is free text until it contains a trigger, and goes on as a tag that begins with it.

The format is a part of xgrammar's, which vLLM accepts as well. Other keys and types are refused.

    {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<call>"], "tags": [
        {"begin": "<call>", "content": CONTENT, "end": "</call>"}]}}

A trigger is the beginning of one or more tags. A CONTENT is one of these:

    {"type": "const_string", "value": "…"}
    {"type": "json_schema", "json_schema": {…}}
    {"type": "regex", "pattern": "…"}          as an extension without the texts in "excludes": ["…", …]
    {"type": "any_text"}                       in a tag: up to its end
    {"type": "sequence", "elements": [CONTENT, …]}
    {"type": "or", "elements": [CONTENT, …]}
    {"type": "list", "element": CONTENT}       one or more
    {"type": "tag", "begin": "…", "content": CONTENT, "end": "…"}

A list is an extension, and so are four keys. `"repeats": true` in a tag: behind it the answer ends, or the next tag
with its trigger follows. `"at_start": true` in a tag: its trigger counts only where an answer, or what follows its
reasoning, begins with it. `"is_lenient": true` in `format`: schemas that cannot be served are replaced by one of any
object. Triggers do not count in the reasoning that an answer begins with, which `format` names:
`"reasoning": {"begin": "<think>", "end": "</think>", "is_open": false}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from aethermind.errors import InvalidArgumentError
from aethermind.sampling.json_schemas import with_discriminators, with_safe_bounds, without_noop_keywords

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["StructuralTags", "TriggeredGuide", "json_grammar", "parse_tags"]

_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_PAIR = ("begin", "end")
_MAX_TRIGGERS = 64
"""Each has a grammar of its own, and is looked for behind each token."""

_FORMAT_KEYS = frozenset({"type", "triggers", "tags", "reasoning", "is_lenient"})


def json_grammar(schema: Any) -> str:
    """Return a JSON schema in the form that llguidance takes. With flexible white space small models write it without
    end, so there is one space after each separator.
    """
    changed = with_safe_bounds(with_discriminators(without_noop_keywords(schema)))
    return json.dumps({**changed, "x-guidance": _JSON_OPTIONS} if isinstance(changed, dict) else changed)


@dataclass(frozen=True, slots=True)
class StructuralTags:
    """Structural tags that were read. `tags` are by trigger."""

    tags: Mapping[str, Sequence[Mapping[str, Any]]]
    is_lenient: bool
    reasoning: tuple[str, str] | None
    is_reasoning_open: bool

    @classmethod
    def parse(cls, text: str) -> StructuralTags:
        """Read structural tags; InvalidArgumentError for another format."""
        given = json.loads(text)
        format = given.get("format") if given.get("type") == "structural_tag" else None
        if not isinstance(format, dict) or format.get("type") != "triggered_tags" or not format.keys() <= _FORMAT_KEYS:
            raise _error('is no {"type": "structural_tag", "format": {"type": "triggered_tags", …}}')
        triggers, tags = format.get("triggers"), format.get("tags")
        if not (isinstance(triggers, list) and all(isinstance(one, str) and one for one in triggers)):
            raise _error("has no list of triggers")
        if len(triggers) > _MAX_TRIGGERS:
            raise _error(f"has {len(triggers)} triggers but may have {_MAX_TRIGGERS}")
        if not (isinstance(tags, list) and tags and all(isinstance(tag, dict) for tag in tags)):
            raise _error("has no list of tags")
        by_trigger: dict[str, list[Mapping[str, Any]]] = {}
        for tag in tags:
            begin = tag.get("begin")
            trigger = next((one for one in triggers if isinstance(begin, str) and begin.startswith(one)), None)
            if trigger is None:
                raise _error(f"has a tag that begins with none of the triggers: {begin!r:.80}")
            by_trigger.setdefault(trigger, []).append(tag)
        reasoning = format.get("reasoning") or {}
        if not isinstance(reasoning, dict) or not all(isinstance(reasoning.get(key, ""), str) for key in _PAIR):
            raise _error("has no begin and end of reasoning")
        pair = (reasoning["begin"], reasoning["end"]) if all(map(reasoning.get, _PAIR)) else None
        return cls(
            by_trigger, bool(format.get("is_lenient")), pair, pair is not None and bool(reasoning.get("is_open"))
        )

    def is_at_start(self, trigger: str) -> bool:
        """Whether a trigger counts only at the beginning of an answer."""
        return all(tag.get("at_start") is True for tag in self.tags[trigger])

    def grammar(self, trigger: str, added_tokens: Mapping[str, int], *, is_strict: bool = True) -> str:
        """Return the grammar, in llguidance's Lark, of text that begins with a trigger.

        `added_tokens` are the ids of tokens outside of the model's vocabulary of text. If a trigger is not one of them,
        other text may precede it, or be all: the constraint begins where a text may be the beginning of the trigger.
        Without `is_strict`, any object satisfies each schema.
        """
        rules = _Rules(added_tokens, is_strict=is_strict)
        has_text = trigger not in added_tokens
        names = []
        for tag in self.tags[trigger]:
            rest = {**tag, "begin": tag["begin"].removeprefix(trigger)} if has_text else tag
            names.append(rules.rule(rules.tag(rest)))
        body = f"({' | '.join(names)})"
        if has_text:
            head = rules.rule(f"TEXT {json.dumps(trigger, ensure_ascii=False)}", "[lazy]")
            body = f"{head} {body}"
        start = f"({body})+" if any(tag.get("repeats") for tag in self.tags[trigger]) else body
        lines = [f"start: {start} | TEXT" if has_text else f"start: {start}", *rules.lines, "TEXT: /(.|\\n)*/"]
        return "\n".join(["%llguidance {}", *lines, ""])


@lru_cache(maxsize=64)
def parse_tags(text: str) -> StructuralTags:
    """Read structural tags, as `StructuralTags.parse`; conversations send the same tools again and again."""
    return StructuralTags.parse(text)


class _Rules:
    """Collects the rules of a grammar. Mutable."""

    def __init__(self, added_tokens: Mapping[str, int], *, is_strict: bool) -> None:
        self.lines: list[str] = []
        self._names: dict[tuple[str, str], str] = {}
        self._ids = added_tokens
        self._is_strict = is_strict
        names = sorted(filter(None, added_tokens), key=len, reverse=True)
        self._added = re.compile(f"({'|'.join(map(re.escape, names))})") if names else None

    def rule(self, body: str, attributes: str = "", *, is_terminal: bool = False) -> str:
        """Add a rule, unless there is one with this body; returns its name."""
        name = self._names.get((body, attributes))
        if name is None:
            name = self._names[body, attributes] = f"{'TEXT' if is_terminal else 'rule'}_{len(self.lines)}"
            self.lines.append(f"{name}{attributes}: {body}")
        return name

    def tag(self, tag: Mapping[str, Any]) -> str:
        """Return a tag as an expression."""
        begin, content, end = tag.get("begin"), tag.get("content"), tag.get("end")
        if not (isinstance(begin, str) and isinstance(content, Mapping) and isinstance(end, str)):
            raise _error("has a tag without begin, content or end")
        if content.get("type") == "any_text" and end and self._pieces(end)[0] not in self._ids:
            # One lexeme that ends where the end first occurs: the text's own lexeme would include it.
            return f"{self._text(begin)} {self.rule(f'TEXT {json.dumps(end, ensure_ascii=False)}', '[lazy]')}"
        return " ".join((self._text(begin), self.content(content), self._text(end)))

    def content(self, content: Mapping[str, Any]) -> str:
        """Return a content as an expression."""
        kind = content.get("type")
        if kind == "const_string" and isinstance(value := content.get("value"), str):
            return self._text(value)
        if kind == "json_schema" and isinstance(schema := content.get("json_schema"), Mapping | bool):
            if schema is False:
                raise _error("has the schema false, which describes nothing")
            any_object = {"type": "object"}
            return self.rule(f"%json {json_grammar(schema or {} if self._is_strict else any_object)}")
        if kind == "regex" and isinstance(pattern := content.get("pattern"), str):
            if not isinstance(excluded := content.get("excludes"), list):
                return _lark_regex(pattern)
            texts = "|".join(re.escape(str(text)) for text in excluded)
            return self.rule(f"{_lark_regex(pattern)} & ~{_lark_regex(f'({texts})')}", is_terminal=True)
        if kind == "any_text":
            return "TEXT"
        if kind == "tag":
            return self.tag(content)
        if kind == "list" and isinstance(element := content.get("element"), Mapping):
            return f"({self.content(element)})+"
        elements = content.get("elements")
        if kind in ("sequence", "or") and isinstance(elements, list):
            parts = [self.content(element) for element in elements]
            if kind == "sequence":
                return " ".join(parts)
            choices = " | ".join(f"({part})" for part in parts if part.strip())
            return f"({choices}){'' if all(part.strip() for part in parts) else '?'}" if choices else ""
        raise _error(f"has an unknown content: {content!r:.80}")

    def _text(self, text: str) -> str:
        """Return a text as an expression, with added tokens by their ids."""
        ids = ((piece, self._ids.get(piece)) for piece in self._pieces(text))
        return " ".join(json.dumps(piece, ensure_ascii=False) if id is None else f"<[{id}]>" for piece, id in ids)

    def _pieces(self, text: str) -> list[str]:
        """Split a text at added tokens."""
        pieces = [text] if self._added is None else self._added.split(text)
        return [piece for piece in pieces if piece]


class TriggeredGuide:
    """The state of structural tags after the tokens of one answer, with the interface of `TokenGuide`.

    Until a trigger occurs there is no constraint, so such an answer needs no masks. If a grammar does not allow the
    text behind a trigger, which can happen only where its first token has more text than the trigger, the text is free.
    """

    __slots__ = (
        "__weakref__",
        "_begin",
        "_head",
        "_is_open",
        "_is_single",
        "_matcher",
        "_num_consumed",
        "_reasoning_end",
        "_start_triggers",
        "_tags",
        "_tail",
        "_tail_tokens",
        "_token_bytes",
        "_triggers",
        "compiled",
        "lane",
    )

    def __init__(
        self,
        tags: StructuralTags,
        compiled: Future[dict[str, Any]],
        token_bytes: Callable[[int], bytes],
        is_single: Mapping[str, bool],
        lane: int,
    ) -> None:
        """`compiled` are matchers (llguidance) by trigger; `is_single` says which triggers are one token."""
        self.lane = lane
        self._tags = tags
        self.compiled = compiled
        self._token_bytes = token_bytes
        self._is_single = is_single
        encoded = {trigger.encode(): trigger for trigger in tags.tags}
        self._triggers = {name: trigger for name, trigger in encoded.items() if not tags.is_at_start(trigger)}
        self._start_triggers = {name: trigger for name, trigger in encoded.items() if tags.is_at_start(trigger)}
        self._begin: bytes | None = b"" if self._start_triggers else None
        """The text of the answer behind reasoning, while it may be the beginning of a trigger that counts there."""
        self._matcher: Any = None
        self._is_open = False
        """Whether a tag has begun; otherwise the text so far may be the beginning of a trigger."""
        self._tail = b""
        """Text that may be the beginning of a trigger, or of the end of reasoning."""
        self._tail_tokens: list[int] = []
        self._num_consumed = 0
        is_open, pair = tags.is_reasoning_open, tags.reasoning
        self._reasoning_end = pair[1].encode() if pair is not None and is_open else b""
        self._head = b"" if pair is not None and not is_open else None
        """The beginning of the answer, while it may be the beginning of reasoning."""

    def fork(self) -> TriggeredGuide:
        """Return a copy in the same state."""
        copy = TriggeredGuide(self._tags, self.compiled, self._token_bytes, self._is_single, self.lane)
        for name in ("_begin", "_is_open", "_tail", "_num_consumed", "_reasoning_end", "_head"):
            setattr(copy, name, getattr(self, name))
        copy._tail_tokens = self._tail_tokens[:]
        copy._matcher = None if self._matcher is None else self._matcher.deep_copy()
        return copy

    def is_active(self, output_token_ids: Sequence[int]) -> bool:
        """Whether the next token is constrained. Tokens that are not on the host yet have negative ids."""
        self._advance(output_token_ids)
        return self._matcher is not None

    def num_free(self, output_token_ids: Sequence[int], next_token_ids: Sequence[int]) -> int:
        """Return how many of the tokens that may follow the answer leave the token after them without constraint."""
        if self.is_active(output_token_ids):
            return 0
        guide, output = self.fork(), list(output_token_ids)
        for number, token_id in enumerate(next_token_ids):
            output.append(token_id)
            if guide.is_active(output):
                return number
        return len(next_token_ids)

    def fill(self, output_token_ids: Sequence[int], mask: npt.NDArray[np.int32]) -> str | None:
        """Write the tokens that may follow the answer so far, as `TokenGuide.fill` does; never a failure."""
        self._advance(output_token_ids)
        if self._matcher is not None:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            if self._matcher.is_error():
                self._close()
        if self._matcher is None:
            mask[:] = -1
        return None

    def forced(self, output_token_ids: Sequence[int]) -> list[int]:
        """Return the tokens that must follow the answer so far."""
        self._advance(output_token_ids)
        if self._matcher is None or not self._is_open:
            return []
        tokens: list[int] = self._matcher.compute_ff_tokens()
        for token_id in tokens:
            self._num_consumed += 1
            self._consume(token_id)
        return tokens

    def _advance(self, output_token_ids: Sequence[int]) -> None:
        """Follow the answer so far."""
        for token_id in output_token_ids[self._num_consumed :]:
            if token_id < 0:
                return
            self._num_consumed += 1
            if self._head is not None or self._reasoning_end:
                for after_reasoning in self._read_reasoning(token_id):
                    self._take(after_reasoning)
            else:
                self._take(token_id)

    def _take(self, token_id: int) -> None:
        """Take a token that is not reasoning."""
        if self._is_open:
            self._consume(token_id)
        else:
            self._find_trigger(token_id)

    def _consume(self, token_id: int) -> None:
        """Take a token of a tag."""
        if self._matcher is None:  # it has ended while forced tokens were consumed
            return
        self._matcher.consume_token(token_id)
        if self._matcher.is_stopped():  # also after an error
            self._close()

    def _close(self) -> None:
        """End a tag."""
        self._matcher, self._is_open, self._tail = None, False, b""
        self._tail_tokens = []

    def _read_reasoning(self, token_id: int) -> Sequence[int]:
        """Find the end of the reasoning that the answer begins with. Returns the tokens so far if there is none."""
        text = self._token_bytes(token_id)
        if self._head is not None:
            assert self._tags.reasoning is not None
            begin, end = (tag.encode() for tag in self._tags.reasoning)
            self._head += text
            self._tail_tokens.append(token_id)
            stripped = self._head.lstrip()
            if begin.startswith(stripped) and stripped != begin:
                return ()
            tokens, self._tail_tokens, self._head = self._tail_tokens, [], None
            if not stripped.startswith(begin):
                return tokens
            self._reasoning_end, text = end, stripped[len(begin) :]
        self._tail += text
        if self._reasoning_end in self._tail:
            self._tail, self._reasoning_end = b"", b""
        else:
            self._tail = self._tail[1 - len(self._reasoning_end) :]
        return ()

    def _find_trigger(self, token_id: int) -> None:
        """Look for a trigger in the text, and begin its tag."""
        token_text = self._token_bytes(token_id)
        text = self._tail + token_text
        self._tail_tokens.append(token_id)
        overlap, begun, found = b"", "", None
        if self._begin is not None:
            self._begin += token_text
            begin = self._begin.lstrip()
            for name, trigger in self._start_triggers.items():
                if begin.startswith(name):
                    found = trigger
                elif begin and name.startswith(begin):
                    overlap, begun = begin, trigger
            if begin and not overlap:
                self._begin = None
        for name, trigger in self._triggers.items() if found is None else ():
            if self._is_single[trigger]:
                if token_text == name:
                    self._tail_tokens, found = [token_id], trigger
                    break
                continue
            if name in text:
                found = trigger
                break
            starts = range(max(len(text) - len(name), 0), len(text))
            rest = next((text[start:] for start in starts if name.startswith(text[start:])), b"")
            if len(rest) > len(overlap):
                overlap, begun = rest, trigger
        if found is not None:
            self._start(found, self._tail_tokens)
            self._is_open = self._matcher is not None
            return
        if not overlap:
            self._close()
            return
        num_bytes = 0
        for index, tail_token in enumerate(reversed(self._tail_tokens), 1):
            num_bytes += len(self._token_bytes(tail_token))
            if num_bytes >= len(overlap):
                self._tail_tokens = self._tail_tokens[-index:]
                break
        self._tail = overlap
        self._start(begun, self._tail_tokens)

    def _start(self, trigger: str, token_ids: Sequence[int]) -> None:
        """Begin to constrain the answer, of which `token_ids` are the last tokens."""
        matcher = self.compiled.result().get(trigger)
        self._matcher = None if matcher is None else matcher.deep_copy()
        if self._matcher is not None:
            self._matcher.consume_tokens(list(token_ids))
            if self._matcher.is_stopped():
                self._close()


def _lark_regex(pattern: str) -> str:
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:  # it would escape the end of the expression
        raise _error(f"has a regex that ends with a backslash: {pattern!r:.80}")
    escaped = re.sub(r"\\.|/", lambda found: "\\/" if found[0] == "/" else found[0], pattern)
    return f"/{escaped}/"


def _error(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"structural_tag {reason}. The documentation of sampling.structural_tags has its format.",
        param="structural_tag",
    )

"""Unproductive rules of a grammar: those that no finite text matches, because every alternative recurs.

llguidance does not terminate on such a rule if it can begin with the empty text, so these grammars are refused. Syntax
that this check does not understand counts as productive.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

__all__ = ["unproductive_rules"]

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*)"""
    r"""|(?P<text>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/[a-z]*|<[^>\n]*>)"""
    r"""|(?P<name>[?!]?[A-Za-z_]\w*)"""
    r"""|(?P<other>->|.)"""
)
_OPENING, _CLOSING = "([{", ")]}"


def unproductive_rules(lark: str) -> list[str]:
    """Return the names of unproductive rules, in order; `lark` is a grammar in Lark's notation."""
    rules = dict(_rules(list(_tokens(lark))))
    ending: set[str] = set()
    while found := [name for name, body in rules.items() if name not in ending and _ends(body, rules, ending)]:
        ending.update(found)
    return [name for name in rules if name not in ending]


def _tokens(lark: str) -> Iterator[str]:
    for match in _TOKEN.finditer(lark):
        if match.lastgroup == "text":
            yield '""'
        elif match.lastgroup != "skip":
            yield match.group()


def _rules(tokens: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each rule's name and the tokens behind its colon."""
    starts = [(at, colon) for at in range(len(tokens)) if (colon := _colon_behind(tokens, at))]
    ends = [at for at, _ in starts[1:]] + [len(tokens)]
    for (at, colon), end in zip(starts, ends, strict=False):
        yield tokens[at].lstrip("?!"), tokens[colon + 1 : end]


def _colon_behind(tokens: Sequence[str], at: int) -> int | None:
    """Return the index of the colon if a rule's name is here, perhaps with attributes or a priority."""
    if not tokens[at].lstrip("?!").isidentifier():
        return None
    behind = at + 1
    if tokens[behind : behind + 1] in (["["], ["{"], ["."]):
        while behind < len(tokens) and tokens[behind] not in ("]", "}", ":", "|"):
            behind += 1
        behind += tokens[behind : behind + 1] in (["]"], ["}"])
    return behind if tokens[behind : behind + 1] == [":"] else None


def _ends(body: Sequence[str], rules: Mapping[str, object], ending: Collection[str]) -> bool:
    """Whether some alternative consists of productive rules only."""
    depth, is_finite = 0, True
    for at, token in enumerate(body):
        if body[max(at - 1, 0)] == "->":  # this token is the name of the alternative
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
        elif token in rules and token not in ending and body[at + 1 : at + 2] not in (["?"], ["*"], ["{"], ["~"]):
            is_finite = False
    return is_finite

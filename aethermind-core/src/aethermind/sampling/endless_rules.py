"""Rules of a grammar that never end: whatever way they are written has them again.

No text satisfies them, and the library that follows grammars looks for one for ever where such a rule can begin with
nothing. What this does not understand of a grammar counts as ending.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

__all__ = ["endless_rules"]

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*)"""
    r"""|(?P<text>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/[a-z]*|<[^>\n]*>)"""
    r"""|(?P<name>[?!]?[A-Za-z_]\w*)"""
    r"""|(?P<other>->|.)"""
)
_OPENING, _CLOSING = "([{", ")]}"


def endless_rules(lark: str) -> list[str]:
    """The names of rules that no finite text matches, in order; `lark` is a grammar in Lark's notation."""
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
    """Each rule's name and what stands behind its colon."""
    starts = [(at, colon) for at in range(len(tokens)) if (colon := _colon_behind(tokens, at))]
    ends = [at for at, _ in starts[1:]] + [len(tokens)]
    for (at, colon), end in zip(starts, ends, strict=False):
        yield tokens[at].lstrip("?!"), tokens[colon + 1 : end]


def _colon_behind(tokens: Sequence[str], at: int) -> int | None:
    """Where the colon is, if a rule's name stands here, perhaps with its attributes or priority."""
    if not tokens[at].lstrip("?!").isidentifier():
        return None
    behind = at + 1
    if tokens[behind : behind + 1] in (["["], ["{"], ["."]):
        while behind < len(tokens) and tokens[behind] not in ("]", "}", ":", "|"):
            behind += 1
        behind += tokens[behind : behind + 1] in (["]"], ["}"])
    return behind if tokens[behind : behind + 1] == [":"] else None


def _ends(body: Sequence[str], rules: Mapping[str, object], ending: Collection[str]) -> bool:
    """Whether some alternative has nothing but what ends."""
    depth, is_finite = 0, True
    for at, token in enumerate(body):
        if body[max(at - 1, 0)] == "->":  # what is behind is a name for the alternative
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

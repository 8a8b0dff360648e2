"""Special and added tokens that the files beside tokenizer.json declare.

Fine-tuning adds tokens, and tools write them to tokenizer_config.json, added_tokens.json or special_tokens_map.json,
not always to tokenizer.json. The files are read as transformers reads them, in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aethermind.errors import TokenizerError, remedy

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as FastTokenizer

__all__ = [
    "DeclaredToken",
    "add_missing_tokens",
    "declared_tokens",
    "one_line",
    "read_json_object",
    "tokens_by_role",
    "with_special_tokens_map",
]


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, empty if there is no file; TokenizerError for anything but an object."""
    if not path.is_file():
        return {}
    try:
        contents = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not readable JSON: {one_line(error)}. {remedy(path, error)}") from error
    if not isinstance(contents, dict):
        raise TokenizerError(f"{path} holds a JSON {type(contents).__name__}, not an object. Fetch the file again.")
    return contents


def one_line(error: Exception) -> str:
    """Return the message of an error on one line, without a full stop."""
    return " ".join(str(error).split()).rstrip(".")


_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


class DeclaredToken(NamedTuple):
    """A token that a file declares, with its id if the file has one."""

    text: str
    token_id: int | None
    flags: tuple[bool, ...]
    """The values of `_FLAGS`, in that order."""
    is_optional: bool = False
    """Whether a token that is not in the vocabulary is skipped: a role alone does not add a token."""


def with_special_tokens_map(config: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the contents of tokenizer_config.json with those of special_tokens_map.json, which older tools write."""
    if "added_tokens_decoder" in config:
        return dict(config)
    return {**config, **read_json_object(directory / "special_tokens_map.json")}


def tokens_by_role(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of tokens by role: the standard roles, and others whose names end in `_token`."""
    tokens = {}
    for role in _ROLES:
        value = _text_of(config.get(role))
        if value is None:
            continue
        if not isinstance(value, str):
            raise TokenizerError(
                f'tokenizer_config.json gives {role} as {value!r}; write the token\'s text, as in "<|im_end|>".'
            )
        tokens[role] = value
    extra = config.get("extra_special_tokens")
    merged = {**config, **extra} if isinstance(extra, dict) else config
    return tokens | {
        role: value
        for role, value in merged.items()
        if role.endswith("_token") and role not in _ROLES and isinstance(value, str)
    }


def declared_tokens(config: Mapping[str, Any], directory: Path) -> list[DeclaredToken]:
    """Return all tokens that the files declare, those with ids first, in the order of ids."""
    named = set(tokens_by_role(config).values())
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if not isinstance(extra, list | dict):
        raise _not_a_token(extra)
    extra = list(extra.values()) if isinstance(extra, dict) else extra
    by_role = [config[role] for role in _ROLES if config.get(role) is not None]
    found: dict[str, DeclaredToken] = {}
    decoder = config.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        for token_id, value in decoder.items():
            found |= _declared(value, token_id, is_special=_text_of(value) in named)
    elif decoder is None:
        special = named | {_text_of(value) for value in extra}
        for text, token_id in read_json_object(directory / "added_tokens.json").items():
            is_special = text in special
            found |= _declared({"content": text, "normalized": not is_special}, token_id, is_special=is_special)
    else:
        raise _not_a_token(decoder)
    with_ids = sorted(found.values(), key=lambda token: token.token_id or 0)
    without_ids: dict[str, DeclaredToken] = {}
    for values, is_optional in ((by_role, True), (extra, False)):
        for value in values:
            without_ids |= _declared(value, None, is_special=True, is_optional=is_optional)
    return [*with_ids, *(token for text, token in without_ids.items() if text not in found)]


def add_missing_tokens(fast: FastTokenizer, declared: Sequence[DeclaredToken]) -> None:
    """Add the tokens that tokenizer.json lacks; TokenizerError where one would get another id than a file declares."""
    present = {token.content for token in fast.get_added_tokens_decoder().values()}
    missing = [
        token
        for token in declared
        if token.text not in present and not (token.is_optional and fast.token_to_id(token.text) is None)
    ]
    fast.add_tokens([_as_added_token(token) for token in missing])
    for token in missing:
        token_id = fast.token_to_id(token.text)
        if token.token_id not in (None, token_id):
            raise TokenizerError(
                f"The token {token.text!r} has the id {token.token_id} by the files beside tokenizer.json, where it "
                f"would be {token_id}. Make these files come from the same model."
            )


def _as_added_token(token: DeclaredToken) -> AddedToken:
    from tokenizers import AddedToken

    lstrip, rstrip, single_word, normalized, special = token.flags
    return AddedToken(
        token.text, lstrip=lstrip, rstrip=rstrip, single_word=single_word, normalized=normalized, special=special
    )


def _declared(value: Any, token_id: Any, *, is_special: bool, is_optional: bool = False) -> dict[str, DeclaredToken]:
    """Return {text: token} of a value in a file, which is a text, or an object with a text and flags."""
    text, entry = _text_of(value), value if isinstance(value, dict) else {}
    defaults = {"special": is_special, "normalized": not (is_special or entry.get("special"))}
    flags = [entry.get(flag, defaults.get(flag, False)) for flag in _FLAGS]
    flags[-1] = flags[-1] is True or is_special
    is_id = token_id is None or (isinstance(token_id, int | str) and str(token_id).isdecimal())
    if not isinstance(text, str) or not text or not is_id or not all(isinstance(flag, bool) for flag in flags):
        raise _not_a_token(value)
    return {text: DeclaredToken(text, None if token_id is None else int(token_id), tuple(flags), is_optional)}


def _text_of(value: Any) -> Any:
    """Return the text of a token that is given as a text, or as an object with `content`."""
    return value.get("content") if isinstance(value, dict) else value


def _not_a_token(value: Any) -> TokenizerError:
    return TokenizerError(
        f"The files beside tokenizer.json have {value!r:.80} where a token should be. Fetch them again from one place."
    )

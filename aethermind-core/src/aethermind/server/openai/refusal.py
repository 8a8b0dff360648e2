"""What is wrong with a body that does not fit its model: which field, as clients write it, and what that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from aethermind.server.openai.errors import ApiError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["refusal_of"]

_ALLOWED = "Input should be "
_OBJECTS = ("model_type", "model_attributes_type", "dict_type")
"""Errors about values that should be objects, which pydantic tells by the names of Python's classes."""


def refusal_of(error: ValidationError) -> ApiError:
    """A 400 that names the field that is wrong; of several the deepest, which says most where a field has branches."""
    errors = error.errors(include_url=False, include_input=False)
    first = max(errors, key=lambda one: len(one["loc"]))
    path = _path_of(first)
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{path} is not supported; leave it out.", param=path, code="unsupported_parameter")
    if first["type"] == "missing":
        return ApiError(400, f"{path} is missing.", param=path, code="missing_required_parameter")
    words, *others = dict.fromkeys(_words_of(one) for one in errors if _path_of(one) == path)
    words = " or ".join([words, *(other.removeprefix(_ALLOWED) for other in others)])
    return ApiError(400, f"{path or 'The request body'}: {words}.", param=path, code="invalid_value")


def _words_of(error: ErrorDetails) -> str:
    """What one branch of a field takes."""
    if error["type"] in _OBJECTS:
        return f"{_ALLOWED}an object"
    if error["type"] == "union_tag_invalid":
        tags = str(error["ctx"]["expected_tags"]).replace("[", "").replace("]", "")
        return f"type should be one of {tags}"
    return error["msg"]


def _path_of(error: ErrorDetails) -> str | None:
    """Where the field is, without the branches of unions that lead there."""
    location = error["loc"]
    num_inner = len(location) if error["type"] in _OBJECTS else len(location) - 1
    parts = [part for part in location[:num_inner] if not (_is_branch(part) or _is_model(part))]
    parts += [part for part in location[num_inner:] if not _is_branch(part)]
    return ".".join(map(str, parts)) or None


def _is_branch(part: object) -> bool:
    """Whether a part of an error's location names a branch of a union, which no client has written."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "bool"))


def _is_model(part: object) -> bool:
    """The same of a branch that is one of our models: fields have small letters."""
    return isinstance(part, str) and part[:1].isupper()

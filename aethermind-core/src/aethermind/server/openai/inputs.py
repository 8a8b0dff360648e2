"""What several endpoints call a prompt or an input: a text, some texts, the token ids of one, or those of some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aethermind.server.openai.errors import ApiError

if TYPE_CHECKING:
    from aethermind.engine.requests.prompt_reader import Prompt

__all__ = ["TextsOrTokens", "prompts_of"]

TextsOrTokens = str | list[str] | list[int] | list[list[int]]


def prompts_of(given: TextsOrTokens, field: str, most: int) -> list[Prompt]:
    """The prompts in the field `field`, each as the engine takes them. ApiError 400 for none or more than `most`."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, f"{field} is an empty list; give it a text or token ids.", param=field)
    if isinstance(given[0], int):
        return [{"prompt_token_ids": given}]
    if len(given) > most:
        raise ApiError(400, f"{field} has {len(given)} texts but may have {most}; split the request.", param=field)
    return [one if isinstance(one, str) else {"prompt_token_ids": one} for one in given]

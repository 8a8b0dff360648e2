"""Prompts that begin alike are computed once, also where they are answered at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.scheduling.decision import ScheduleDecision

__all__ = ["share_prompts"]


def share_prompts(cache: KVCache, decision: ScheduleDecision) -> None:
    """Let whoever comes next reuse what a step, which has run, read of prompts: their requests may go on for long.

    A prompt that takes several steps is offered when it is whole, and whenever twice as much of it was read as the last
    time: to offer it is to hash it from its beginning. Answers are offered when they end.
    """
    for request, num_tokens, _ in decision.scheduled:
        after = request.num_computed_tokens
        before = after - num_tokens
        is_whole = before < request.num_prompt_tokens <= after
        has_doubled = after < request.num_prompt_tokens and after.bit_length() > before.bit_length()
        if is_whole or has_doubled:
            cache.publish(request.request_id, request.all_token_ids)

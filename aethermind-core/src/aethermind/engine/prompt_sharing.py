"""Prompts that begin alike are computed once, also where they are answered at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.decision import ScheduleDecision

__all__ = ["share_prompts"]


def share_prompts(cache: KVCache, decision: ScheduleDecision) -> None:
    """Let whoever comes next reuse what a step, which has run, read of prompts: their requests may go on for long.

    Answers are offered for reuse when they end.
    """
    for request, num_tokens, _ in decision.scheduled:
        if num_tokens > 1 and request.num_computed_tokens - num_tokens < request.num_prompt_tokens:
            cache.publish(request.request_id, request.all_token_ids)

"""The decision for a step in which one request decodes one token and nothing else waits: it needs no scheduler.

That is every decode step of a single answer, so a small model on a CPU spends its time on the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aethermind.cache.outcome import CacheOutcome
from aethermind.engine.scheduling.decision import ScheduleDecision, ScheduledRequest

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.requests.request import Request
    from aethermind.engine.scheduling.scheduler import WaitingQueue

__all__ = ["schedule_lone_decode"]


def schedule_lone_decode(cache: KVCache, waiting: WaitingQueue, running: list[Request]) -> ScheduleDecision | None:
    """Return what `Scheduler.schedule` would decide, with the token's slot reserved; None if it has to be asked.

    It has to be asked unless exactly one request runs, with one token to compute and no drafts to verify, no request
    waits, and a slot is free. Without a free slot nothing is reserved.
    """
    if len(running) != 1 or waiting:
        return None
    request = running[0]
    if len(request.all_token_ids) - request.num_computed_tokens != 1 or request.draft_token_ids:
        return None
    reserved = cache.reserve(request.request_id, 1)
    if reserved.outcome is not CacheOutcome.OK:
        return None
    decision = ScheduleDecision([ScheduledRequest(request, 1, True)], num_batched_tokens=1, num_decodes=1)
    decision.prepare(reserved)
    return decision

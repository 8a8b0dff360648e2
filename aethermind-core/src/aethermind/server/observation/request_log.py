"""A line in the log for each HTTP request: what was asked, what it took, how it ended. Never what it said."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from aethermind.log import get_logger, quoted

if TYPE_CHECKING:
    from aethermind.server.observation.records import HttpRecord

__all__ = ["log_request"]


_LONGEST = 256
_IN_MESSAGE = ("client", "method", "path", "status")

_log = get_logger("aethermind.request")


def log_request(record: HttpRecord) -> None:
    """Log a request that is over: as `info`, and as `debug` what monitors and the page ask all the time."""
    level = logging.INFO if record.is_work else logging.DEBUG
    if _log.isEnabledFor(level):
        path, status = quoted(record.path[:_LONGEST]), "gone" if record.status is None else record.status
        extra = {"fields": _fields(record), "in_message": _IN_MESSAGE}
        _log.log(level, "%s %s %s %s", record.client or "-", record.method, path, status, extra=extra)


def _fields(record: HttpRecord) -> dict[str, Any]:
    """What is known, in the order in which it is read; what is not known is left out."""
    work = record.generations
    fields: dict[str, Any] = {
        "client": record.client,
        "method": record.method,
        "path": record.path[:_LONGEST],
        "status": record.status,
        "error": record.error_code,
    }
    if work:
        fields |= {
            "model": work[0].model,
            "stream": record.is_stream,
            "prompt_tokens": sum(one.num_prompt_tokens for one in work),
            "cached_tokens": sum(one.num_cached_tokens for one in work),
            "output_tokens": sum(one.num_output_tokens for one in work),
            "preemptions": sum(one.num_preemptions for one in work),
            "finish_reason": ",".join(dict.fromkeys(reason for one in work for reason in one.finish_reasons)),
        }
    if record.embedding is not None:
        fields |= {"model": record.embedding.model, "prompt_tokens": record.embedding.num_prompt_tokens}
    seconds = {"ttft": record.ttft_s, "duration": record.duration_s}
    fields |= {f"{name}_ms": None if value is None else round(value * 1e3, 3) for name, value in seconds.items()}
    fields |= {
        "tenant": record.tenant,
        "user": None if record.user is None else record.user[:_LONGEST],
        "request_id": record.request_id,
        "client_request_id": record.client_id,
        "prompts": record.prompts or None,
    }
    return {name: value for name, value in fields.items() if value is not None}

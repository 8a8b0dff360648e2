"""Requests that nobody should send: hostile bodies, and whatever schemathesis makes of the API's description."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode
from tests.server.test_abuse import HOSTILE, MALFORMED
from tests.soak.report import Figure, percentile
from tests.soak.server import Server

__all__ = ["hostile", "schema"]

_OTHER_PROTOCOLS = ("/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/api/generate")
"""Paths that get the bodies that are invalid for every endpoint."""


async def hostile(server: Server, num_rounds: int) -> list[Figure]:
    """Each hostile body is a 400, and at once."""
    seconds, others = [], 0
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        for _ in range(num_rounds):
            bodies = [("/v1/completions", content) for content in HOSTILE.values()]
            bodies += [(path, HOSTILE[name]) for path in _OTHER_PROTOCOLS for name in MALFORMED]
            for path, content in bodies:
                start_s = time.perf_counter()
                others += http.post(path, content=content).status_code != 400
                seconds.append(time.perf_counter() - start_s)
    return [
        Figure("hostile bodies", len(seconds)),
        Figure("answers that are no 400", others, 0),
        Figure("milliseconds of an answer, p50", percentile(seconds, 0.5) * 1e3),
        Figure("milliseconds of an answer, most", max(seconds) * 1e3, 100, True),
    ]


async def schema(server: Server, num_examples: int) -> list[Figure]:
    """So many examples of every operation, half of them against its schema: no answer is a 5xx."""
    described = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    seen: Counter[int] = Counter()
    failed: list[str] = []
    num_operations = 0
    for result in described.get_all_operations():
        operation = result.ok()
        num_operations += 1
        has_input = operation.body or operation.path_parameters or operation.query
        for mode in GenerationMode if has_input else (GenerationMode.POSITIVE,):
            for status, what in _answers(operation, mode, max(num_examples // 2, 1), server.model):
                seen[status] += 1
                if status >= 500:
                    failed.append(f"{operation.label}: {what}")
    for what in failed[:5]:
        print(what)
    return [
        Figure("operations", num_operations),
        Figure("examples", seen.total()),
        Figure("answers 200", seen[200]),
        Figure("answers 5xx", len(failed), 0),
    ]


def _answers(operation: Any, mode: GenerationMode, count: int, model: str) -> list[tuple[int, str]]:
    found = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = model  # or hardly anything would get further than to the model's name
        answer = case.call(timeout=60)
        found.append((answer.status_code, f"{case.body!r:.300} -> {answer.text[:300]}"))

    with suppress(Unsatisfiable):  # where nothing breaks a schema: any text is a name
        send()
    return found

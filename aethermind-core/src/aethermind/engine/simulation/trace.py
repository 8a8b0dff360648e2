"""Request traces: arrival times with prompt and output lengths.

Two published formats are read, distinguished by their first line:

- CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens (Azure LLM inference traces), and optionally Priority,
  DeadlineMs, Tenant;
- JSON lines with timestamp (milliseconds), input_length, output_length (Mooncake), and optionally hash_ids, priority,
  deadline_ms, tenant. `hash_ids` identify the prompt's blocks of 512 tokens: equal ids, equal content.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from aethermind.engine.requests.request import RequestOptions
from aethermind.engine.simulation.cost_model import StepCosts
from aethermind.errors import ConfigError, InvalidArgumentError

__all__ = ["HASH_BLOCK_TOKENS", "TraceRequest", "complete", "read_trace"]

HASH_BLOCK_TOKENS = 512
"""Number of prompt tokens that each of the `hash_ids` of a trace stands for."""

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MAX_TOKENS = 2**31


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace; `arrival_s` counts from the first request."""

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()
    priority: int | None = None
    deadline_ms: float | None = None
    tenant: str | None = None


def read_trace(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """Read a trace, or its first `limit` requests, sorted by arrival. ConfigError names the first invalid line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = next((line for line in file if line.strip()), "")
            if not first:
                raise ConfigError(f"Trace {path} is empty. Pass a trace with at least one request.")
            file.seek(0)
            parse = _json_lines if first.lstrip().startswith("{") else _csv_lines
            found = list(islice(parse(path, file), limit))
    except UnicodeDecodeError as error:
        raise ConfigError(f"Trace {path} is not text in UTF-8: {error.reason}. Pass CSV or JSON lines.") from None
    if not found:
        raise ConfigError(f"Trace {path} has no requests. Pass a trace with at least one.")
    start = min(request.arrival_s for request in found)
    shifted = [_shifted(request, -start) for request in found]
    return sorted(shifted, key=lambda request: request.arrival_s)


def _shifted(request: TraceRequest, seconds: float) -> TraceRequest:
    values = {name: getattr(request, name) for name in TraceRequest.__slots__}
    return TraceRequest(**{**values, "arrival_s": request.arrival_s + seconds})


def _csv_lines(path: Path, file: Iterable[str]) -> Iterator[TraceRequest]:
    rows = csv.DictReader(file)
    names = rows.fieldnames or ()
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise ConfigError(
            f"Trace {path} has no column {', '.join(missing)}. Its first line should name {', '.join(_COLUMNS)}, or "
            "each of its lines be a JSON object with timestamp, input_length and output_length."
        )
    for row in rows:
        yield _checked(
            path,
            rows.line_num,
            lambda row=row: TraceRequest(  # type: ignore[misc]
                _seconds(row["TIMESTAMP"]),
                _count(row, "ContextTokens"),
                _count(row, "GeneratedTokens"),
                (),
                *_optional_columns(row.get("Priority"), row.get("DeadlineMs"), row.get("Tenant")),
            ),
        )


def _json_lines(path: Path, file: Iterable[str]) -> Iterator[TraceRequest]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield _checked(path, number, lambda line=line: _from_json(line))  # type: ignore[misc]


def _from_json(line: str) -> TraceRequest:
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    hash_ids = record.get("hash_ids") or []
    if not isinstance(hash_ids, list) or not all(type(hash_id) is int and abs(hash_id) < 2**48 for hash_id in hash_ids):
        raise ValueError("hash_ids is not a list of integers")
    return TraceRequest(
        _number(record["timestamp"], "timestamp") / 1e3,
        _count(record, "input_length"),
        _count(record, "output_length"),
        tuple(hash_ids),
        *_optional_columns(record.get("priority"), record.get("deadline_ms"), record.get("tenant")),
    )


def _checked(path: Path, number: int, parse: Callable[[], TraceRequest]) -> TraceRequest:
    """Return the result of `parse`; an error becomes a ConfigError with the line's number."""
    try:
        return parse()
    except KeyError as error:
        reason = f"{error.args[0]} is missing"
    except json.JSONDecodeError as error:
        reason = f"it is not JSON ({error.msg})"
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        reason = str(error)
    raise ConfigError(f"Trace {path}, line {number}: {reason.rstrip('.')}. Correct or remove the line.")


def _count(record: dict[str, Any], name: str) -> int:
    number = _number(record[name], name)
    if number != int(number) or not 0 <= number < _MAX_TOKENS:
        raise ValueError(f"{name} is {record[name]!r} but must be a number of tokens")
    return int(number)


def _number(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r} but must be a number") from None
    if not -1e18 < number < 1e18:
        raise ValueError(f"{name} is {value!r} but must be a finite number")
    return number


def _seconds(text: str | None) -> float:
    """Parse a date and time, or seconds."""
    try:
        return datetime.fromisoformat((text or "")[:26]).timestamp()  # to the microsecond
    except ValueError:
        return _number(text, "TIMESTAMP")


def _optional_columns(priority: Any, deadline_ms: Any, tenant: Any) -> tuple[int | None, float | None, str | None]:
    """Parse the optional columns; empty ones are None."""
    level = None if priority in (None, "") else int(priority)
    deadline = None if deadline_ms in (None, "") else _number(deadline_ms, "deadline_ms")
    try:
        RequestOptions(priority=level or 0, deadline_ms=deadline)
    except InvalidArgumentError as error:
        raise ValueError(str(error)) from None
    return level, deadline, None if tenant in (None, "") else str(tenant)


def complete(
    trace: Sequence[TraceRequest], *, rate_scale: float, urgent_share: float, slack: float, costs: StepCosts, chunk: int
) -> list[TraceRequest]:
    """Return the trace with `rate_scale` times the requests per second, each with a priority and a deadline.

    If the trace has no priorities, `urgent_share` of the requests, evenly spread, get -1 and the others 0. The deadline
    of a request without one is `slack` times the time that it takes alone.
    """
    has_priorities = any(traced.priority is not None for traced in trace)
    completed = []
    for index, traced in enumerate(trace):
        is_urgent = int((index + 1) * urgent_share) > int(index * urgent_share)
        priority = traced.priority if has_priorities else -int(is_urgent)
        alone_s = costs.alone_s(max(traced.num_prompt_tokens, 1), max(traced.num_output_tokens, 1), chunk)
        completed.append(
            replace(
                traced,
                arrival_s=traced.arrival_s / rate_scale,
                priority=priority,
                deadline_ms=traced.deadline_ms or slack * alone_s * 1e3,
            )
        )
    return completed

"""A simulation's figures as a table: a row a figure, a column a policy."""

from __future__ import annotations

import sys
from typing import Any

from aethermind.cli import console

__all__ = ["print_table"]


def print_table(report: dict[str, Any]) -> None:
    """Print what was simulated, and what each policy made of it."""
    costs = report["costs"]
    print(
        f"{report['num_requests']} requests in {report['duration_s']:.0f} s, {report['max_num_seqs']} sequences and "
        f"{report['max_num_batched_tokens']} tokens a step at most, {report['num_kv_blocks']} blocks of "
        f"{report['block_size']} tokens"
    )
    print(
        f"A step takes {_time(costs['fixed_s'])} + {_time(costs['prefill_token_s'])} a prompt token + "
        f"{_time(costs['decode_sequence_s'])} a decode + {_time(costs['context_token_s'])} a token of context"
    )
    policies = report["policies"]
    rows = [("", *policies)]
    for title, show in _ROWS:
        rows.append((title, *(show(one) for one in policies.values())))
    first, *rest = console.columns(rows, indent="").splitlines()
    print("\n".join([console.style(first, "bold", sys.stdout), *rest]))
    num_rejected = max(one["num_rejected"] for one in policies.values())
    if num_rejected:
        print(
            f"{num_rejected} of {report['num_requests']} requests need more tokens than the "
            f"{report['num_kv_blocks'] * report['block_size']} that the KV cache holds, and were rejected; raise "
            "--num-kv-blocks."
        )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _latency(name: str) -> Any:
    return lambda one: " / ".join(_time(one[name][key]) for key in ("p50", "p90", "p99"))


def _share(name: str) -> Any:
    return lambda one: "-" if one[name] is None else f"{one[name]:.1%}"


_ROWS = (
    ("first token, p50/p90/p99", _latency("ttft")),
    ("  of urgent requests", _latency("urgent_ttft")),
    ("between tokens", _latency("tpot")),
    ("whole answer", _latency("e2e")),
    ("in time", _share("in_time")),
    ("fairness (Jain)", lambda one: "-" if one["fairness"] is None else f"{one['fairness']:.3f}"),
    ("engine busy", _share("utilisation")),
    ("running, mean", lambda one: f"{one['mean_running']:.1f}"),
    ("waiting, mean / most", lambda one: f"{one['mean_waiting']:.1f} / {one['max_waiting']}"),
    ("KV cache in use", _share("mean_kv_usage")),
    ("prompt tokens reused", _share("cached_share")),
    ("preemptions", lambda one: str(one["num_preemptions"])),
    ("rejected", lambda one: str(one["num_rejected"])),
    ("output tokens/s", lambda one: f"{one['output_tokens_per_s']:.0f}"),
)

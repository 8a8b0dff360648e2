"""`python -m tests.soak [NAME …]`: the load that a server has to bear, measured from outside, against its bars."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.soak.report import Figure, as_record, as_table
from tests.soak.scenarios import SCENARIOS, Scenario, ScenarioWithRestarts
from tests.soak.server import Server, started

__all__ = ["main", "measure"]


def measure(name: str, amount: int, flags: Sequence[str] = ()) -> list[Figure]:
    """The figures of a scenario, run so much, with a server of its own."""
    scenario = SCENARIOS[name]
    if isinstance(scenario, ScenarioWithRestarts):
        return scenario.run(flags, amount)
    gc.freeze()  # a client that looks for garbage among its modules reads late, and would call the server slow
    with started([*scenario.all_flags, *flags]) as server:
        return asyncio.run(_run(scenario, server, amount))


async def _run(scenario: Scenario, server: Server, amount: int) -> list[Figure]:
    return await scenario.run(server, amount)


def main() -> int:
    """Run what is asked for; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or some of {', '.join(SCENARIOS)}; all of them")
    parser.add_argument("--scale", type=float, default=1.0, help="the share of a full run")
    parser.add_argument("--serve", default="", help="further flags for the server, such as --model and --quantization")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in SCENARIOS]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    results: dict[str, list[Figure]] = {}
    for name in given.names or SCENARIOS:
        scenario = SCENARIOS[name]
        amount = max(round(scenario.full * given.scale), scenario.least)
        print(f"{name}: {amount} {scenario.unit} …", file=sys.stderr, flush=True)
        results[name] = measure(name, amount, shlex.split(given.serve))
        print(as_table({name: results[name]}), file=sys.stderr, flush=True)
    print(as_table(results))
    if given.json is not None:
        record = {name: as_record(figures) for name, figures in results.items()}
        given.json.write_text(json.dumps({"scale": given.scale, "serve": given.serve, "figures": record}, indent=1))
    return 0 if all(one.is_kept for figures in results.values() for one in figures) else 1


if __name__ == "__main__":
    sys.exit(main())

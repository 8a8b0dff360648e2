"""A small form of every scenario: what has to hold at any size and on any machine. `make soak` runs them in full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.soak.report import Figure, as_table, percentile
from tests.soak.scenarios import SCENARIOS, Scenario
from tests.soak.server import Server, started

SIZES = {"disconnects": 150, "schema": 8, "overload": 2, "growth": 3}


@pytest.fixture(scope="module")
def server_with() -> Iterator[Callable[[tuple[str, ...]], Server]]:
    """A server with these flags: the same for all who want the same."""
    with ExitStack() as stack:
        servers: dict[tuple[str, ...], Server] = {}

        def get(flags: tuple[str, ...]) -> Server:
            if flags not in servers:
                servers[flags] = stack.enter_context(started(flags))
            return servers[flags]

        yield get


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_bars_are_kept(server_with: Callable[[tuple[str, ...]], Server], name: str) -> None:
    scenario = SCENARIOS[name]
    amount = SIZES.get(name, scenario.least)

    async def run(scenario: Scenario) -> list[Figure]:
        return await scenario.run(server_with(scenario.all_flags), amount)

    figures = asyncio.run(run(scenario)) if isinstance(scenario, Scenario) else scenario.run((), amount)
    missed = [one for one in figures if not one.is_kept and not one.is_timing]
    assert not missed, as_table({name: figures})


def test_the_table_says_what_was_missed() -> None:
    table = as_table({"load": [Figure("failures", 0, 0), Figure("ms", 51.0, 50, is_timing=True), Figure("n", 12)]})
    assert [line.split()[-1] for line in table.splitlines()[1:]] == ["0", "MISSED", "12"]


def test_percentiles() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile([1.0], 0.99) == 1.0

"""The speculation controller on a simulated machine with given step times and acceptance rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from aethermind.engine.speculative.controller import Candidate, SpeculationController


@dataclass
class Machine:
    """Runs steps on a clock of its own: `seconds(tokens)` each, drafts right by `chance(tokens so far)`.

    Looking for drafts takes `search` seconds.
    """

    seconds: Callable[[int], float]
    chance: Callable[[int], float]
    search: float = 0.0
    controller: SpeculationController = field(init=False)
    num_sequences: int = 1
    noise: float = 0.0
    replays: bool = False
    now: float = 0.0
    num_tokens: int = 0
    num_drafts: int = 0
    num_replayed: int = 0
    random: Random = field(default_factory=lambda: Random(1))

    def __post_init__(self) -> None:
        self.controller = SpeculationController(8, replays=self.replays)

    def run(self, num_tokens: int) -> float:
        """How many times faster it was than without drafts."""
        started, until = self.now, self.num_tokens + num_tokens
        while self.num_tokens < until:
            self._step()
        return num_tokens / self.num_sequences * self.seconds(self.num_sequences) / (self.now - started)

    def _step(self) -> None:
        is_active = self.controller.begin_step()
        if self.num_replayed:
            seconds = self.seconds(self.num_sequences - 1 + self.num_replayed)
            self.num_replayed = 0
            self.now += seconds
            self.num_tokens += self.num_sequences
            if is_active:
                self.controller.observe_replay(self.num_sequences, seconds)
            return
        if not is_active:
            self.now += self.seconds(self.num_sequences) * self.random.uniform(1 - self.noise, 1 + self.noise)
            self.num_tokens += self.num_sequences
            return
        candidates = [Candidate(str(index), 100) for index in range(self.num_sequences)]
        chosen = self.controller.choose(candidates, self.num_sequences, 128)
        seconds = self.seconds(self.num_sequences + sum(chosen)) * self.random.uniform(1 - self.noise, 1 + self.noise)
        num_yielded = self.num_sequences
        for candidate, count in zip(candidates, chosen, strict=True):
            accepted = 0
            while accepted < count and self.random.random() < self.chance(self.num_tokens):
                accepted += 1
            num_yielded += accepted
            if count:
                self.controller.observe_acceptance(candidate.request_id, count, accepted)
            if self.replays and accepted < count:
                self.num_replayed += accepted + 2
        self.now += seconds + self.search
        self.num_drafts += sum(chosen)
        self.num_tokens += num_yielded
        if sum(chosen):
            self.controller.observe_verification(self.num_sequences, sum(chosen), num_yielded, seconds + self.search)
        else:
            self.controller.observe_plain(self.num_sequences, seconds, self.search)


def bound_by_memory(tokens: int) -> float:
    return 0.015 + 0.0005 * tokens


def bound_by_arithmetic(tokens: int) -> float:
    return 0.002 + 0.01 * tokens


@pytest.mark.parametrize("seconds", [bound_by_memory, bound_by_arithmetic])
@pytest.mark.parametrize("chance", [0.0, 0.05, 0.3, 0.6])
@pytest.mark.parametrize("num_sequences", [1, 16])
@pytest.mark.parametrize("num_tokens", [64, 1000])
@pytest.mark.parametrize(("replays", "least"), [(False, 0.95), (True, 0.93)])
def test_a_run_is_never_much_slower_than_without_drafts(
    seconds: Callable[[int], float], chance: float, num_sequences: int, num_tokens: int, replays: bool, least: float
) -> None:
    machine = Machine(seconds, lambda _: chance, num_sequences=num_sequences, noise=0.1, replays=replays)
    assert machine.run(num_tokens * num_sequences) > least


def test_a_slow_proposer_is_not_used() -> None:
    """Where steps take as long as their overhead, even looking is too much."""
    machine = Machine(lambda tokens: 2e-4 + 5e-5 * tokens, lambda _: 0.1, search=6e-5, noise=0.1)
    assert machine.run(200) > 0.95
    assert machine.run(2000) > 0.97


def test_drafts_are_tried_even_if_decisions_use_the_trial_budget() -> None:
    machine = Machine(lambda tokens: 1.7e-4 + 1e-5 * tokens, lambda _: 0.9, search=3e-5, noise=0.1)
    machine.run(1000)
    assert machine.run(1000) > 2.0


def test_a_long_prompt_does_not_end_all_trials() -> None:
    machine = Machine(bound_by_memory, lambda _: 0.9)
    while machine.num_drafts == 0:
        machine.run(1)
    machine.controller.observe_verification(1, 4, 5, 100.0, is_first=True)
    machine.run(600)
    assert machine.run(200) > 2.5


def test_trials_that_lose_become_rare() -> None:
    machine = Machine(bound_by_memory, lambda _: 0.0)
    machine.run(2000)
    num_drafts = machine.num_drafts
    assert machine.run(10_000) > 0.998
    assert machine.num_drafts - num_drafts <= 4 * 10_000 / 256 + 4


@pytest.mark.parametrize(("chance", "least"), [(0.95, 3.5), (0.8, 2.3), (0.5, 1.3)])
def test_right_drafts_pay_where_memory_bounds(chance: float, least: float) -> None:
    assert Machine(bound_by_memory, lambda _: chance, noise=0.1).run(400) > least


@pytest.mark.parametrize(("chance", "least"), [(0.95, 3.0), (0.8, 1.7), (0.65, 1.05)])
def test_right_drafts_pay_even_where_wrong_ones_take_a_step_more(chance: float, least: float) -> None:
    assert Machine(bound_by_memory, lambda _: chance, noise=0.1, replays=True).run(400) > least


def test_no_drafts_where_each_costs_a_token() -> None:
    machine = Machine(bound_by_arithmetic, lambda _: 0.5)
    machine.run(2000)
    assert machine.num_drafts < 80


def test_drafts_resume_when_they_become_better() -> None:
    machine = Machine(bound_by_memory, lambda done: 0.0 if done < 1000 else 0.9)
    machine.run(1000)
    machine.run(300)
    assert machine.run(300) > 2.5


def test_a_series_of_wrong_drafts_costs_little_after_good_ones() -> None:
    machine = Machine(bound_by_memory, lambda done: 0.9 if done < 500 else 0.0)
    machine.run(500)
    assert machine.run(100) > 0.95
    assert machine.run(1000) > 0.97


def test_a_request_with_wrong_drafts_does_not_affect_others() -> None:
    controller = SpeculationController(4)
    candidates = [Candidate("good", 100), Candidate("bad", 100)]
    chosen = [0, 0]
    for _ in range(200):
        controller.begin_step()
        chosen = controller.choose(candidates, 2, 128)
        for candidate, count in zip(candidates, chosen, strict=True):
            if count:
                controller.observe_acceptance(candidate.request_id, count, count if candidate == candidates[0] else 0)
        if sum(chosen):
            controller.observe_verification(2, sum(chosen), 2 + chosen[0], bound_by_memory(2 + sum(chosen)))
        else:
            controller.observe_plain(2, bound_by_memory(2))
    assert chosen[0] == 4
    assert chosen[1] <= 1


def test_limits_are_kept() -> None:
    machine = Machine(bound_by_memory, lambda _: 1.0, num_sequences=3)
    machine.run(600)
    chosen = machine.controller.choose([Candidate("0", 1), Candidate("1", 100), Candidate("2", 100)], 3, 7)
    assert sum(chosen) == 7
    assert chosen[0] <= 1


def test_no_trials_in_steps_that_cannot_be_compared() -> None:
    controller = SpeculationController(4)
    for _ in range(5):
        assert controller.begin_step()
        assert controller.choose([Candidate("a", 9)], 1, 9, may_run_trial=False) == [0]
        controller.observe_plain(1, 0.01)
    assert controller.begin_step()
    assert controller.choose([Candidate("a", 9)], 1, 9) == [4]


def test_an_interruption_does_not_end_drafting() -> None:
    machine = Machine(bound_by_memory, lambda _: 0.9)
    machine.run(300)
    machine.controller.observe_verification(1, 8, 9, 0.04)
    machine.run(100)
    assert machine.run(200) > 2.5

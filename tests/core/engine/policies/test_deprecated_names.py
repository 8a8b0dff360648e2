"""Former names of a policy's members still work, and their use is announced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from aethermind.engine.policies import FairShare, FirstComeFirstServed, Request, SharingPolicy, ignored_options
from aethermind.engine.policies.base import sharing_policy
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.plugins import DeprecatedUseWarning


class Former(FirstComeFirstServed):
    """A policy written with the names `giver` and `heeds`."""

    heeds = frozenset({"priority"})
    used_options = None  # type: ignore[assignment]

    def place(self, request: Request, waiting: Iterable[Request], running: Iterable[Request]) -> float:
        return 7.0

    def giver(self, request: Request, running: Sequence[Request], movable: Iterable[Request]) -> Request | None:
        return next(iter(movable), None)


def test_a_policy_with_the_former_method_name_shares() -> None:
    policy = Former()
    assert not isinstance(policy, SharingPolicy)
    with pytest.warns(DeprecatedUseWarning, match="choose_victim"):
        sharing = sharing_policy(policy)
    assert isinstance(sharing, SharingPolicy)
    assert sharing.choose_victim.__func__ is Former.giver  # type: ignore[attr-defined]
    assert sharing.place.__self__ is policy  # type: ignore[attr-defined]


def test_a_policy_of_this_version_is_taken_as_it_is() -> None:
    fair = FairShare()
    assert sharing_policy(fair) is fair
    assert sharing_policy(FirstComeFirstServed()) is None


def test_the_former_attribute_of_used_options_counts() -> None:
    with pytest.warns(DeprecatedUseWarning, match="used_options"):
        assert ignored_options(Former()) == ("deadline_ms",)
    assert ignored_options(FirstComeFirstServed()) == ("priority", "deadline_ms")


def test_the_former_name_of_a_decisions_field_is_announced() -> None:
    with pytest.warns(DeprecatedUseWarning, match="pending_prompt_logprobs"):
        assert ScheduleDecision().unscored is None

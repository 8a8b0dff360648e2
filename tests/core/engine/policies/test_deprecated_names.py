"""Former names of a policy's members still work, and their use is announced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from aethermind import SamplingParams
from aethermind.engine.policies import (
    FairShare,
    FirstComeFirstServed,
    Request,
    SharingPolicy,
    ShortestFirst,
    ignored_options,
)
from aethermind.engine.policies.base import sharing_policy
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.plugins import DeprecatedUseWarning


class Former(FirstComeFirstServed):
    """A policy written with the names `place`, `giver` and `heeds`."""

    heeds = frozenset({"priority"})
    used_options = None  # type: ignore[assignment]

    def place(self, request: Request, waiting: Iterable[Request], running: Iterable[Request]) -> float:
        return 7.0

    def giver(self, request: Request, running: Sequence[Request], movable: Iterable[Request]) -> Request | None:
        return next(iter(movable), None)


def test_a_policy_with_former_method_names_shares() -> None:
    policy = Former()
    assert not isinstance(policy, SharingPolicy)
    with (
        pytest.warns(DeprecatedUseWarning, match="choose_victim"),
        pytest.warns(DeprecatedUseWarning, match="virtual_arrival"),
    ):
        sharing = sharing_policy(policy)
    assert isinstance(sharing, SharingPolicy)
    assert sharing.choose_victim.__func__ is Former.giver  # type: ignore[attr-defined]
    assert sharing.virtual_arrival.__func__ is Former.place  # type: ignore[attr-defined]


def test_a_policy_of_this_version_is_taken_as_it_is() -> None:
    fair = FairShare()
    assert sharing_policy(fair) is fair
    assert sharing_policy(FirstComeFirstServed()) is None


def test_the_former_attribute_of_used_options_counts() -> None:
    with pytest.warns(DeprecatedUseWarning, match="used_options"):
        assert ignored_options(Former()) == ("deadline_ms",)
    assert ignored_options(FirstComeFirstServed()) == ("priority", "deadline_ms")


def test_former_names_of_a_requests_fields_are_announced() -> None:
    request = Request("a", [1, 2], SamplingParams(), 3.0, max_model_len=9)
    with pytest.warns(DeprecatedUseWarning, match="virtual_arrival"):
        assert request.place == 3.0
    with pytest.warns(DeprecatedUseWarning, match="num_uncomputed_tokens"):
        assert request.num_missing_tokens == 2


def test_the_former_name_of_a_policys_parameter_works() -> None:
    with pytest.warns(DeprecatedUseWarning, match="size_weight"):
        policy = ShortestFirst(patience=2.0)  # type: ignore[call-arg]
    assert policy.size_weight == 2.0
    with pytest.warns(DeprecatedUseWarning, match="size_weight"):
        assert policy.patience == 2.0  # type: ignore[attr-defined]


def test_the_former_name_of_a_decisions_field_is_announced() -> None:
    with pytest.warns(DeprecatedUseWarning, match="pending_prompt_logprobs"):
        assert ScheduleDecision().unscored is None

"""Parameters of scheduling policies in the text that names the policy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aethermind import Runtime
from aethermind.engine.policies import FairShare, FirstComeFirstServed, PriorityWithAging, WeightedOrder
from aethermind.engine.policies.parameters import create_policy, policy_parameters
from aethermind.errors import AetherMindError, ConfigError

PAGE = Path(__file__).parents[4] / "docs/using/scheduling.md"


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("fair", FairShare()),
        ("fair:spacing_s=5", FairShare(spacing_s=5.0)),
        (
            "priority:aging_s=1e2:vip_priority=-3:vip_share=.5",
            PriorityWithAging(aging_s=100.0, vip_priority=-3, vip_share=0.5),
        ),
        ("weighted:size_weight=0:deadline_weight=2", WeightedOrder(size_weight=0.0, deadline_weight=2.0)),
    ],
)
def test_a_text_names_a_policy_and_its_parameters(runtime: Runtime, text: str, policy: object) -> None:
    assert create_policy(runtime.policies, text) == policy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "priority:ageing_s=3",
            "has no parameter 'ageing_s'; did you mean aging_s. Write priority:PARAMETER=VALUE; ",
        ),
        ("fcfs:spacing_s=3", "The scheduling policy fcfs has no parameters. Write fcfs alone."),
        ("priority:", "has no parameter ''"),
        ("priority:aging_s", "aging_s of the scheduling policy priority needs a value: aging_s=VALUE."),
        ("priority:aging_s=2:aging_s=3", "aging_s of the scheduling policy priority is given twice; give it once."),
        ("priority:aging_s=soon", "aging_s of the scheduling policy priority is 'soon': it should be a valid number."),
        ("priority:vip_priority=1.5", "vip_priority of the scheduling policy priority is '1.5': it should be a valid"),
        ("priority:aging_s=0", "aging_s is 0.0 but must be a finite number of seconds above 0"),
        ("priority:vip_share=1", "vip_share is 1.0 but must be a number from 0 to less than 1"),
        ("weighted:waiting_weight=0", "waiting_weight is 0.0 but must be a finite number above 0."),
        ("weighted:size_weight=nan", "size_weight is nan but must be a finite number of 0 or more."),
    ],
)
def test_wrong_parameters_are_one_sentence(runtime: Runtime, text: str, words: str) -> None:
    with pytest.raises(AetherMindError, match=words):
        create_policy(runtime.policies, text)


def test_an_unknown_policy_with_parameters_is_unknown(runtime: Runtime) -> None:
    with pytest.raises(ConfigError, match="Unknown scheduling policy 'lottery'"):
        create_policy(runtime.policies, "lottery:seed=3")


def test_the_page_lists_every_parameter_with_its_default(runtime: Runtime) -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    names = [name for name in runtime.policies.names() if runtime.policies.provider(name) == "aethermind-core"]
    expected = {
        (name, parameter.name, repr(parameter.default))
        for name in names
        for parameter in policy_parameters(runtime.policies.get(name)).values()
    }
    assert expected
    assert {(policy, name, repr(float(default)) if "." in default else default) for policy, name, default in rows} == {
        (policy, name, default) for policy, name, default in expected
    }
    assert not policy_parameters(FirstComeFirstServed)

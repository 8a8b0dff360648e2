"""The cost of a step, and of a request alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from aethermind.engine.requests.request import Request
from aethermind.engine.scheduling.decision import ScheduleDecision, ScheduledRequest
from aethermind.engine.simulation import StepCosts, read_costs
from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.sampling.params import SamplingParams


def test_a_step_costs_the_sum_of_its_parts() -> None:
    decode, prefill = (Request(name, [1] * 50, SamplingParams(), 0.0, max_model_len=99) for name in "ab")
    decode.num_computed_tokens, prefill.num_computed_tokens = 49, 8
    entries = [ScheduledRequest(decode, 1, True), ScheduledRequest(prefill, 16, False)]
    decision = ScheduleDecision(entries, num_batched_tokens=17, num_decodes=1)
    costs = StepCosts(1000.0, 100.0, 10.0, 1.0)
    assert costs.step_s(decision) == 1000.0 + 16 * 100.0 + 10.0 + (50 + 24)


def test_costs_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text('{"fixed_s": 0.5}')
    assert read_costs(path) == StepCosts(fixed_s=0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "should be a JSON object of some of fixed_s, prefill_token_s"),
        ('{"speed": 1}', "should be a JSON object of some of"),
        ('{"fixed_s": -1}', "fixed_s is -1 but must be a number of seconds"),
        ('{"fixed_s": "1"}', "fixed_s is '1' but must be a number of seconds"),
        ('{"fixed_s": NaN}', "fixed_s is nan"),
        ('{"fixed_s": 0, "decode_sequence_s": 0}', "takes no time"),
    ],
)
def test_invalid_cost_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_costs(path)


def test_costs_are_seconds() -> None:
    with pytest.raises(InvalidArgumentError, match="context_token_s is True"):
        StepCosts(context_token_s=True)

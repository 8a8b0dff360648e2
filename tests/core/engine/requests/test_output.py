"""An output shows the state at which it was made, though its lists are shared with later outputs."""

from __future__ import annotations

from typing import Any

from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestMetrics
from aethermind.engine.requests.output_delta import CompletionDelta, OutputAccumulator, OutputDelta

SCORE = {1: Logprob(-1.0, 1, "a")}


class Kept(list[int]):
    """Knows how many of its items were given away."""

    num_given = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.num_given += len(found) if isinstance(found, list) else 1
        return found

    def __iter__(self) -> Any:
        raise AssertionError("all would be copied")


def test_an_answer_does_not_change_while_its_lists_grow() -> None:
    token_ids, logprobs = [1], [SCORE]
    output = CompletionOutput(0, "a", token_ids, logprobs, None, None)
    token_ids.append(2)
    logprobs.append({})
    assert (output.token_ids, output.logprobs, output.num_tokens) == ([1], [SCORE], 1)
    assert output == CompletionOutput(0, "a", [1], [SCORE], None, None)
    assert output != CompletionOutput(0, "a", [1, 2], [SCORE, {}], None, None)
    assert output != "a"
    assert repr(output).startswith("CompletionOutput(index=0, text='a', token_ids=[1], logprobs=[{1: Logprob(")


def test_what_is_new_is_all_that_is_copied() -> None:
    kept, before, copied = Kept(), 0, list[int]()
    for number in range(100):
        kept.append(number)
        output = CompletionOutput(0, "", kept, None, None, None)
        copied += output.since(before)[0]
        before = output.num_tokens
    assert copied == list(range(100))
    assert kept.num_given == 100


def test_an_accumulator_copies_nothing_but_what_is_new() -> None:
    accumulator, states = OutputAccumulator("Once", [3]), list[CompletionOutput]()
    for number in range(50):
        delta = CompletionDelta(0, "", [number], None, number + 1)
        output = accumulator.add(OutputDelta("name", [delta], False, RequestMetrics(0.0, 0.0, None), 1))
        states.append(output.outputs[0])
    assert all(state._token_ids is states[0]._token_ids for state in states)
    assert [state.num_tokens for state in states] == list(range(1, 51))

"""What an answer shows: what there was of it, though what it is made of grows on."""

from __future__ import annotations

from typing import Any

from aethermind.engine.process.output_delta import OutputAccumulator, SentOutput
from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from aethermind.engine.requests.prompt_reader import EnginePrompt

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
    kept, before, told = Kept(), 0, list[int]()
    for number in range(100):
        kept.append(number)
        output = CompletionOutput(0, "", kept, None, None, None)
        told += output.since(before)[0]
        before = output.num_tokens
    assert told == list(range(100))
    assert kept.num_given == 100


def test_a_state_crosses_to_another_process_without_a_copy_of_what_crossed_before() -> None:
    sent, growing, kept = SentOutput(), OutputAccumulator("name", EnginePrompt("Once", [3])), Kept()
    states = []
    for number in range(50):
        kept.append(number)
        answer = CompletionOutput(0, "", kept, None, None, None)
        news = sent.cut(RequestOutput("name", "Once", [3], [answer], False, RequestMetrics(0.0, 0.0, None)))
        states.append(growing.grow(news).outputs[0])
    assert kept.num_given == 50
    assert all(state._token_ids is states[0]._token_ids for state in states)
    assert [state.num_tokens for state in states] == list(range(1, 51))

"""What a conversation gains from the prefixes it has computed before: the first token of each turn.

make bench
"""

from __future__ import annotations

from aethermind import LLM, SamplingParams

NUM_TURNS = 10


def first_tokens(enable_prefix_caching: bool) -> list[tuple[int, int, float]]:
    """(prompt tokens, tokens reused, seconds to the first token) of each turn."""
    params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    turns = []
    with LLM("demo", enable_prefix_caching=enable_prefix_caching) as llm:
        conversation = [7 + i % 500 for i in range(64)]
        for turn in range(NUM_TURNS):
            conversation = conversation + [11 + (turn * 31 + i) % 500 for i in range(96)]
            (output,) = llm.generate({"prompt_token_ids": conversation}, params)
            metrics = output.metrics
            assert metrics.first_token_s is not None
            turns.append((len(conversation), output.num_cached_tokens, metrics.first_token_s - metrics.arrival_s))
            conversation = conversation + list(output.outputs[0].token_ids)
    return turns


def bench_turns_of_a_conversation() -> None:
    """Print the time to the first token of the first and the last turn, with and without reuse."""
    for is_reusing in (False, True):
        (first, *_, last) = first_tokens(is_reusing)
        for name, (num_tokens, num_cached, seconds) in (("first", first), ("last", last)):
            print(
                f"\n{'with' if is_reusing else 'without'} reuse, {name} turn: {num_tokens} tokens, "
                f"{num_cached} reused, first token after {seconds * 1e3:.1f} ms",
                end="",
            )
    print()

"""What answers took: of one as a line, of all as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aethermind.cli.generate import measure

if TYPE_CHECKING:
    from aethermind.cli.chat.conversation import Conversation
    from aethermind.engine.output import RequestOutput

__all__ = ["Statistics", "describe"]


@dataclass(slots=True)
class Statistics:
    """Sums over the answers of a chat. Mutable."""

    num_answers: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_context_tokens: int = 0
    """Prompt and answer of the last one."""

    def add(self, output: RequestOutput) -> None:
        """Count an answer."""
        num_prompt, num_output = len(output.prompt_token_ids), len(output.outputs[0].token_ids)
        self.num_answers += 1
        self.num_prompt_tokens += num_prompt
        self.num_cached_tokens += output.num_cached_tokens
        self.num_output_tokens += num_output
        self.num_context_tokens = num_prompt + num_output

    def rows(self, conversation: Conversation, max_model_len: int) -> list[tuple[str, str]]:
        """Name and value, to be shown in columns."""
        return [
            ("turns", str(conversation.num_turns)),
            ("answers", f"{self.num_answers}, {self.num_output_tokens} tokens"),
            ("prompts", f"{self.num_prompt_tokens} tokens, {self.num_cached_tokens} of them reused"),
            ("context", f"{self.num_context_tokens} of {max_model_len} tokens at the last answer"),
        ]


def describe(output: RequestOutput, seed: int | None) -> str:
    """One answer's tokens and speed in a line; `seed` is None for an answer without chance."""
    measured = measure(output)
    parts = [
        f"{measured['num_prompt_tokens']} prompt tokens, {output.num_cached_tokens} reused",
        f"{measured['num_output_tokens']} answer tokens",
    ]
    if measured["ttft_s"] is not None:
        parts.append(f"first after {measured['ttft_s'] * 1e3:.0f} ms")
    if measured["decode_tokens_per_s"] is not None:
        parts.append(f"then {measured['decode_tokens_per_s']:.1f} tokens/s")
    if seed is not None:
        parts.append(f"seed {seed}")
    return "[" + " · ".join(parts) + "]"

"""What answers took: of one as a line, of all as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.cli.chat.answerers import Reply
    from aethermind.cli.chat.conversation import Conversation

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

    def add(self, reply: Reply) -> None:
        """Count an answer."""
        self.num_answers += 1
        self.num_prompt_tokens += reply.num_prompt_tokens
        self.num_cached_tokens += reply.num_cached_tokens
        self.num_output_tokens += reply.num_output_tokens
        self.num_context_tokens = reply.num_prompt_tokens + reply.num_output_tokens

    def rows(self, conversation: Conversation, max_model_len: int | None) -> list[tuple[str, str]]:
        """Name and value, to be shown in columns."""
        of_all = "" if max_model_len is None else f" of {max_model_len}"
        return [
            ("turns", str(conversation.num_turns)),
            ("answers", f"{self.num_answers}, {self.num_output_tokens} tokens"),
            ("prompts", f"{self.num_prompt_tokens} tokens, {self.num_cached_tokens} of them reused"),
            ("context", f"{self.num_context_tokens}{of_all} tokens at the last answer"),
        ]


def describe(reply: Reply) -> str:
    """One answer's tokens and speed in a line."""
    parts = [
        f"{reply.num_prompt_tokens} prompt tokens, {reply.num_cached_tokens} reused",
        f"{reply.num_output_tokens} answer tokens",
    ]
    if reply.ttft_s is not None:
        parts.append(f"first after {reply.ttft_s * 1e3:.0f} ms")
    if reply.decode_tokens_per_s is not None:
        parts.append(f"then {reply.decode_tokens_per_s:.1f} tokens/s")
    if reply.seed is not None:
        parts.append(f"seed {reply.seed}")
    return "[" + " · ".join(parts) + "]"

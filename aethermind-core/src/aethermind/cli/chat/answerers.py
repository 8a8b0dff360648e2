"""Who answers in a chat: a model that is loaded here, or (in `server`) one behind a URL."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from aethermind.cli.prefill import PrefillProgress
from aethermind.text.token_memory import TokenMemory

if TYPE_CHECKING:
    from aethermind.cli.chat.conversation import Conversation
    from aethermind.llm import LLM

__all__ = ["Answerer", "LocalAnswerer", "Reply"]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer so far. `finish_reason` is None while it grows; counts are 0 where nobody told them.

    `seed` repeats it; None for an answer without chance, and for one whose chance is not ours. `ttft_s` is the time to
    its first token, `decode_s` the time since.
    """

    text: str
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    seed: int | None = None
    ttft_s: float | None = None
    decode_s: float | None = None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens a second after the first; None where too little happened to tell."""
        return (self.num_output_tokens - 1) / self.decode_s if self.num_output_tokens > 1 and self.decode_s else None


class Answerer(Protocol):
    """Answers a conversation."""

    max_model_len: int | None
    """The longest context in tokens; None if that is not known."""
    has_steps: bool
    """Whether it must not be interrupted but between two states of an answer."""
    unsaid: str | None
    """Whose settings apply where a conversation has none; None if a conversation has all that apply."""

    def answer(self, conversation: Conversation, attempt: int) -> Generator[Reply, None, None]:
        """Yield the answer to the last question as it grows. Closing the generator ends it."""
        ...


class LocalAnswerer:
    """A model that runs in this process."""

    has_steps = True
    unsaid: str | None = None

    def __init__(self, llm: LLM, chat_template: str | None = None, adapter: str = "") -> None:
        self.max_model_len: int | None = llm.info.max_model_len
        self._llm = llm
        self._memory = TokenMemory(llm.tokenizer)
        self._chat_template = chat_template
        self._adapter = adapter

    def answer(self, conversation: Conversation, attempt: int) -> Generator[Reply, None, None]:
        """Answer, with the keys and values of earlier turns used again."""
        params = conversation.params(attempt)
        prompt, template = conversation.prompt(), self._chat_template
        stream = self._llm.stream_chat(
            prompt, params, memory=self._memory, adapter=self._adapter, chat_template=template
        )
        with PrefillProgress(self._llm) as prefill, closing(stream) as outputs:
            for output in outputs:
                prefill.stop()
                completion, times = output.outputs[0], output.metrics
                ttft_s = decode_s = None
                if times.first_token_s is not None:
                    ttft_s = times.first_token_s - times.arrival_s
                    decode_s = None if times.finished_s is None else times.finished_s - times.first_token_s
                yield Reply(
                    completion.text,
                    completion.finish_reason,
                    len(output.prompt_token_ids),
                    output.num_cached_tokens,
                    len(completion.token_ids),
                    None if params.is_greedy else params.seed,
                    ttft_s,
                    decode_s,
                )

"""`/v1/completions`: the request schema, and the full or streamed continuation of one or several prompts."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from aethermind.engine.requests.output_delta import CompletionDelta
from aethermind.server.generation import PromptState, ResponseBuilder, response_id, token_usage
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.request_fields import SamplingFields, sampling_params
from aethermind.server.openai.serving import TextsOrTokens, engine_prompts
from aethermind.server.openai.unknown_fields import UNSUPPORTED_IN_COMPLETIONS, UnsupportedField
from aethermind.server.sse import TextEvents
from aethermind.text.detokenizer import TokenOffsets, prompt_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aethermind.engine.requests.output import Logprob, RequestOutput
    from aethermind.engine.requests.prompt_reader import Prompt
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.served_model import ServedModel
    from aethermind.server.sse import Event
    from aethermind.text.tokenizer import Tokenizer

    _ScoredToken = tuple[int, dict[int, Logprob] | None, int]
    """A token id, the log probabilities at its position, and its offset in the text."""

__all__ = ["CompletionRequest", "CompletionResponseBuilder", "fill_in_the_middle"]

MAX_PROMPTS = 64
DEFAULT_MAX_TOKENS = 16
"""The default of OpenAI's API."""


_FILL_IN_THE_MIDDLE = (
    "<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
    "<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>",
    "<｜fim▁begin｜>{prefix}<｜fim▁hole｜>{suffix}<｜fim▁end｜>",
    "[SUFFIX]{suffix}[PREFIX]{prefix}",
    "<|code_prefix|>{prefix}<|code_suffix|>{suffix}<|code_middle|>",
)
"""The prompts with which models fill in the middle of a text: Qwen2.5-Coder, CodeGemma and Granite 4; StarCoder and
Granite; DeepSeek-Coder; Codestral; GLM."""

_FIM_TOKEN = re.compile(r"<[^<>{} ]+>|\[[A-Z]+\]")
_FIM_ENDS = ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<file_sep>")


def fill_in_the_middle(tokenizer: Tokenizer, prefix: str, suffix: str) -> tuple[str, tuple[int, ...]]:
    """The prompt for the text between two others, and the ids of the tokens that end it besides the end of text.

    ApiError 400 for a model without the tokens.
    """
    for template in _FILL_IN_THE_MIDDLE:
        tokens = _FIM_TOKEN.findall(template)
        ids = [tokenizer.token_to_id(token) for token in tokens]
        if None not in ids:
            ends = (tokenizer.token_to_id(token) for token in (*tokens, *_FIM_ENDS))
            prompt = template.format(prefix=prefix, suffix=suffix)
            return prompt, tuple(token_id for token_id in ends if token_id is not None)
    raise ApiError(
        400,
        "suffix needs a model that fills in the middle, and this one's vocabulary has no tokens for it, such as "
        "<|fim_prefix|>. Leave suffix out.",
        param="suffix",
    )


class CompletionRequest(SamplingFields):
    """The body of a request."""

    unsupported: ClassVar[Mapping[str, UnsupportedField]] = UNSUPPORTED_IN_COMPLETIONS

    prompt: TextsOrTokens
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None

    @property
    def is_only_echo(self) -> bool:
        """Whether the request only scores the prompt (`echo` with `max_tokens` 0)."""
        return bool(self.echo) and self.max_tokens == 0

    def prompts(self) -> list[Prompt]:
        """The prompts in the engine's format, before `fill_in`."""
        prompts = engine_prompts(self.prompt, "prompt", MAX_PROMPTS)
        if self.suffix and (self.echo or not all(isinstance(prompt, str) for prompt in prompts)):
            raise ApiError(400, "suffix goes with prompts that are texts, and without echo.", param="suffix")
        return prompts

    def fill_in(self, prompts: Sequence[Prompt], model: ServedModel) -> list[Prompt]:
        """The prompts for the model: with a suffix, those that ask for the text between the two."""
        if not self.suffix:
            return list(prompts)
        return [fill_in_the_middle(model.tokenizer, str(prompt), self.suffix)[0] for prompt in prompts]

    def sampling(self, model: ServedModel) -> SamplingParams:
        """The sampling parameters. Engines generate at least one token, which a response omits if it only echoes."""
        if self.suffix and model.tokenizer is not None:
            _, ends = fill_in_the_middle(model.tokenizer, "", self.suffix)
            self.stop_token_ids = sorted({*(self.stop_token_ids or ()), *ends})
        return sampling_params(
            self,
            model,
            max_tokens=1 if self.is_only_echo else self.max_tokens,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
        )


class CompletionResponseBuilder(ResponseBuilder):
    """The response to one request: one `text_completion` object, or a stream of them."""

    def __init__(self, request: CompletionRequest, model: ServedModel, request_id: str) -> None:
        self._is_echoing = bool(request.echo)
        self._is_only_echo = request.is_only_echo
        self._has_usage = request.has_stream_usage
        self._common_fields: dict[str, Any] = {
            "id": response_id(request_id, "cmpl-"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        if self._has_usage:  # all chunks have the field, which is null in all but the last
            self._common_fields["usage"] = None
        self._tokenizer = model.tokenizer
        self._started: set[int] = set()
        self._offsets: dict[int, TokenOffsets] = {}
        self._texts = TextEvents(self.framing, lambda index, text: self._chunk(_choice(index, text)))

    def full_response(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        prompts = [PromptState.final(output) for output in outputs]
        for output, prompt in zip(outputs, prompts, strict=True):
            for completion in output.outputs:
                index = len(choices)
                delta = CompletionDelta.of_whole(index, completion)
                choices.append(self._choice_of(index, delta, prompt))
        return {**self._common_fields, "choices": choices, "usage": self._usage(prompts)}

    def delta_events(self, index: int, delta: CompletionDelta, prompt: PromptState) -> Iterable[Event]:
        if delta.logprobs is None and delta.finish_reason is None and not self._is_only_echo:
            return (self._texts.encode(index, self._echo_once(index, prompt) + delta.text),)
        return (self._chunk(self._choice_of(index, delta, prompt)),)

    def final_events(self, prompts: Sequence[PromptState]) -> Iterable[Event]:
        if not self._has_usage:
            return ()
        return ({**self._common_fields, "choices": [], "usage": self._usage(prompts)},)

    def _choice_of(self, index: int, delta: CompletionDelta, prompt: PromptState) -> dict[str, Any]:
        """The choice object for a delta. The first one of each choice begins with the echoed prompt."""
        if self._is_only_echo:
            no_logprobs: list[dict[int, Logprob]] | None = None if delta.logprobs is None else []
            delta = CompletionDelta(delta.index, "", [], no_logprobs, 0, "length")
        logprobs = self._logprobs(index, delta, None if index in self._started else prompt)
        text = self._echo_once(index, prompt) + delta.text
        return _choice(index, text, delta.finish_reason, delta.stop_reason, logprobs)

    def _echo_once(self, index: int, prompt: PromptState) -> str:
        """The echoed prompt for the first output of the choice `index`, else an empty text."""
        if index in self._started:
            return ""
        self._started.add(index)
        return self._echo(prompt)

    def _usage(self, prompts: Sequence[PromptState]) -> dict[str, Any]:
        """Token counts; the token that an engine generates for an echo alone is not counted."""
        return token_usage(
            [replace(prompt, num_output_tokens=0) for prompt in prompts] if self._is_only_echo else prompts
        )

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self._common_fields, "choices": [choice]}

    def _logprobs(self, index: int, delta: CompletionDelta, echoed: PromptState | None) -> dict[str, Any] | None:
        """The log probabilities of a delta's tokens; in the first delta, those of the echoed prompt before them."""
        if delta.logprobs is None:
            return None
        tokens: list[_ScoredToken] = []
        if echoed is not None:
            prefix = self._echo(echoed)
            if echoed.logprobs is not None and self._is_echoing:
                offsets = prompt_offsets(self._tokenizer, prefix, echoed.token_ids)
                tokens += zip(echoed.token_ids, echoed.logprobs, offsets, strict=True)
            self._offsets[index] = TokenOffsets(self._tokenizer, len(prefix), before=echoed.token_ids)
        offsets = [self._offsets[index].push(token_id) for token_id in delta.token_ids]
        tokens += zip(delta.token_ids, delta.logprobs, offsets, strict=True)
        return _logprobs_object(tokens, self._tokenizer)

    def _echo(self, prompt: PromptState) -> str:
        if not self._is_echoing:
            return ""
        return prompt.text if prompt.text is not None else self._tokenizer.decode(prompt.token_ids)


def _choice(
    index: int, text: str, finish_reason: str | None = None, stop_reason: str | int | None = None, logprobs: Any = None
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
    }


def _logprobs_object(scored_tokens: Sequence[_ScoredToken], tokenizer: Tokenizer) -> dict[str, Any]:
    """The `logprobs` object of OpenAI's API. The first token of a prompt has no log probability."""
    tokens, chosen, top = [], [], []
    for token_id, alternatives, _ in scored_tokens:
        tokens.append(tokenizer.decode([token_id]) if alternatives is None else alternatives[token_id].decoded_token)
        chosen.append(None if alternatives is None else alternatives[token_id].logprob)
        top.append(
            None
            if alternatives is None
            else {alternative.decoded_token: alternative.logprob for alternative in alternatives.values()}
        )
    offsets = [offset for _, _, offset in scored_tokens]
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets}

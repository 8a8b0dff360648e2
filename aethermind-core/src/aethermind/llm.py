"""The offline API: a model, some prompts, their answers. The names are those that scripts for vLLM use.

from aethermind import LLM, SamplingParams

llm = LLM("demo")
for output in llm.generate(["Once upon a time"], SamplingParams(temperature=0.0, max_tokens=64)):
    print(output.outputs[0].text)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from aethermind.engine.config import EngineConfig
from aethermind.engine.engine import Engine
from aethermind.engine.loading.loader import plan_model
from aethermind.engine.observation.model_info import ModelInfo, describe_model
from aethermind.engine.progress_bar import ProgressBar
from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestOutput
from aethermind.engine.requests.prompt_reader import EnginePrompt, Prompt, PromptReader
from aethermind.engine.requests.request_options import RequestOptions
from aethermind.errors import AetherMindError, InvalidArgumentError
from aethermind.runtime import Runtime
from aethermind.sampling.generation_config import read_sampling_defaults
from aethermind.sampling.params import SamplingParams
from aethermind.sampling.structured import StructuredOutputs
from aethermind.text.chat_prompt import Message, TemplateOptions, chat_prompt
from aethermind.text.token_memory import TokenMemory

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.graph.hooks import HookRegistry

__all__ = [
    "CompletionOutput",
    "LLM",
    "Logprob",
    "ModelInfo",
    "RequestOptions",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
]

_NO_OPTIONS = RequestOptions()
_T = TypeVar("_T")


class LLM:
    """A model loaded on a device. Every bad argument is an AetherMindError whose message says what to do."""

    def __init__(
        self,
        model: str | Path = "demo",
        *,
        device: str = "auto",
        dtype: str = "auto",
        quantization: str | None = None,
        lm_head: str | None = None,
        load_format: str = "auto",
        weight_cache: float = 16.0,
        tokenizer: str | Path | None = None,
        max_model_len: int | None = None,
        num_kv_blocks: int | None = None,
        block_size: int = 16,
        kv_cache_dtype: str = "auto",
        swap_space: float = 0.0,
        num_threads: int | None = None,
        seed: int = 0,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        max_new_tokens: int | None = None,
        scheduling_policy: str = "fair",
        enable_prefix_caching: bool = True,
        max_sessions: int = 256,
        session_ttl: float = 600.0,
        kv_store: str | None = None,
        fallback: str = "warn",
        deterministic: bool = False,
        speculative_method: str | None = None,
        draft_model: str | Path | None = None,
        num_speculative_tokens: int = 8,
        prompt_lookup_max: int = 4,
        prompt_lookup_min: int = 2,
        executor: str = "auto",
        tensor_parallel_size: int = 1,
        runtime: Runtime | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load `model`: a Hugging Face directory, a .gguf file, or the name of an installed model.

        `tokenizer` is one of these, or a tokenizer.json, whose tokenizer is used instead of the model's own.

        `num_kv_blocks` blocks of `block_size` tokens bound what all requests together can keep; the context is at
        most that long. With `enable_prefix_caching`, what is left of them keeps the prompts and answers last computed,
        and prompts that begin like one of those reuse its keys and values.
        `kv_cache_dtype` is what keys and values are stored in: `auto` as they are computed, `int8` or `fp8`
        (e4m3) as codes with a scale for each head of a token, in about half of bfloat16's memory.
        `swap_space` is how many GiB of host memory keep the keys and values of requests that give way in a full cache.
        `kv_store` is the address of a place where engines share what they computed (`disk:/path?size=10GiB`,
        `redis://host:6379/0`, `host:2GiB`, or a plugin's); `close` lets it have the rest.
        `weight_cache` is how many GiB in the user's cache folder keep packed weights, which later starts of the same
        model map; 0 keeps none.
        `quantization` is the format to store the model's matrices in (`int8`, `int4`, …), `lm_head` that of the one
        that makes logits (by default int8, or that of the others if it has no fewer bits).
        `scheduling_policy` orders requests where not all can run: fair, fcfs, priority, shortest, deadline, or one of
        a plugin.
        The last turns of `max_sessions` conversations (`RequestOptions.session`) are given up last, for `session_ttl`
        seconds.
        `fallback` says what happens where the device lacks a kernel: error, warn or allow. `deterministic` refuses
        kernels with which a request's tokens could depend on the batch that it is in.
        `speculative_method` drafts tokens that the model then checks, several in a step: `prompt_lookup` quotes what
        followed the last `prompt_lookup_max` to `prompt_lookup_min` tokens before, `draft` asks `draft_model`, a
        smaller model with the same tokens. Answers stay the same; at most `num_speculative_tokens` are drafted at a
        time, fewer or none where that does not pay.
        `tensor_parallel_size` ranks share the model, each a part of every layer; `executor` names where their steps
        run: inline in this process, multiproc in several, auto by their number, or a plugin's.
        """
        started = time.perf_counter()
        config = EngineConfig(
            device=device,
            dtype=dtype,
            quantization=quantization,
            lm_head=lm_head,
            load_format=load_format,
            weight_cache=weight_cache,
            tokenizer=None if tokenizer is None else str(tokenizer),
            max_model_len=max_model_len,
            num_kv_blocks=num_kv_blocks,
            block_size=block_size,
            kv_cache_dtype=kv_cache_dtype,
            swap_space=swap_space,
            num_threads=num_threads,
            seed=seed,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_new_tokens=max_new_tokens,
            scheduling_policy=scheduling_policy,
            enable_prefix_caching=enable_prefix_caching,
            max_sessions=max_sessions,
            session_ttl=session_ttl,
            kv_store=kv_store,
            fallback=fallback,
            deterministic=deterministic,
            speculative_method=speculative_method,
            draft_model=None if draft_model is None else str(draft_model),
            num_speculative_tokens=num_speculative_tokens,
            prompt_lookup_max=prompt_lookup_max,
            prompt_lookup_min=prompt_lookup_min,
            executor=executor,
            tensor_parallel_size=tensor_parallel_size,
        )
        planned = plan_model(runtime or Runtime.boot(), model, config)
        self.engine = Engine.load(planned, on_progress)
        self.tokenizer = self.engine.tokenizer
        self._prompts = PromptReader.of(planned, self.tokenizer)
        self.info = describe_model(self.engine, time.perf_counter() - started)
        self._num_requests = 0
        self._unseen: dict[str, RequestOutput] = {}
        self._is_closed = False

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish the device's work and give everything back."""
        self._is_closed = True
        self.engine.close()

    @property
    def hooks(self) -> HookRegistry:
        """Functions that see values while the model runs; see `aethermind.graph.hooks`."""
        return self.engine.runner.hooks

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """What generation_config.json says, as arguments for SamplingParams; ConfigError names a bad value."""
        return read_sampling_defaults(self.engine.planned.generation)

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters that requests without their own get: `sampling_defaults`, else those of SamplingParams."""
        return SamplingParams(**self.sampling_defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
        use_tqdm: bool = False,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Answer all prompts, batched together; results are in the order of the prompts.

        A prompt is a string, `{"prompt_token_ids": [...]}`, `{"prompt_embeds": array}`, or one of the first two as a
        mapping with `multi_modal_data` (see `engine.prompt_reader`). Without `sampling_params` there are the model's
        own (see `get_default_sampling_params`). `options` are for the scheduler: priority, deadline, quotas.
        `on_output` sees every request after each step in which it grew. `use_tqdm` shows a progress bar on stderr.
        """
        items = _listed(prompts)
        given = self.get_default_sampling_params() if sampling_params is None else sampling_params
        ids = self._add_all(
            items, _one_each(items, given, "sampling_params", SamplingParams), _options_for(items, options)
        )
        waited_for = set(ids)
        finished: dict[str, RequestOutput] = {}
        with ProgressBar(len(ids), use_tqdm) as advance:
            try:
                while waited_for:
                    for output in self._next(waited_for):
                        if on_output is not None:
                            on_output(output)
                        if output.finished:
                            finished[output.request_id] = _checked(output)
                            waited_for.remove(output.request_id)
                            advance()
            finally:
                self._forget(ids)
        return [finished[request_id] for request_id in ids]

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        options: RequestOptions = _NO_OPTIONS,
    ) -> Generator[RequestOutput, None, None]:
        """Answer one prompt, yielding what there is whenever it has grown. Closing the iterator ends the request."""
        ids = self._add_all([prompt], [sampling_params or self.get_default_sampling_params()], [options])
        try:
            while True:
                for output in self._next(ids):
                    yield _checked(output)
                    if output.finished:
                        return
        finally:
            self._forget(ids)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        on_output: Callable[[RequestOutput], None] | None = None,
        **template: Unpack[TemplateOptions],
    ) -> list[RequestOutput]:
        """Answer one conversation, or several batched together; otherwise like `generate`.

        A conversation is a list of `{"role": "user", "content": "…"}`. `template` options are
        `chat_template`, `add_generation_prompt`, `tools` and `chat_template_kwargs`, see `text.chat_prompt`.
        """
        is_single = isinstance(messages, Sequence) and any(isinstance(message, Mapping) for message in messages)
        conversations: Any = [messages] if is_single else _listed(messages)
        prompts = [chat_prompt(self.tokenizer, one, **template) for one in conversations]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, on_output=on_output)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        memory: TokenMemory | None = None,
        **template: Unpack[TemplateOptions],
    ) -> Generator[RequestOutput, None, None]:
        """Answer one conversation like `chat`, yielding like `stream`.

        With the `memory` of a conversation its earlier answers keep the tokens that they were generated with.
        """
        text = chat_prompt(self.tokenizer, messages, **template)
        token_ids = self.tokenizer.encode(text) if memory is None else memory.encode(text)
        output: RequestOutput | None = None
        with closing(self.stream({"prompt_token_ids": token_ids}, sampling_params)) as outputs:
            try:
                for output in outputs:
                    yield replace(output, prompt=text)
            finally:
                if memory is not None and output is not None:
                    completion = output.outputs[0]
                    memory.learn(text, token_ids, completion.text, completion.token_ids)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, pooling: str | None = None, normalize: bool = True
    ) -> list[npt.NDArray[np.float32]]:
        """One vector for each prompt, float32 [hidden_size]: the hidden states behind the model's final norm, pooled.

        `pooling` takes the last token's, the mean of all, or the first token's (`last`, `mean`, `cls`), by default as
        the model says; with `normalize` vectors have length 1. Prompts are texts or token ids. Between requests of
        other callers, too.
        """
        vectors = []
        for prompt in _listed(prompts):
            token_ids = self._read(prompt).tokens_to_embed()
            vectors.append(self.engine.embed(token_ids, pooling, is_normalized=normalize))
        return vectors

    def _read(self, prompt: Prompt) -> EnginePrompt:
        if self._is_closed:
            raise InvalidArgumentError("This LLM was closed; make another one.")
        return self._prompts.read(prompt)

    def _next(self, ids: Collection[str]) -> list[RequestOutput]:
        """Step until some of these requests grew; what others got is kept until they ask (several may be open)."""
        while True:
            ready = [self._unseen.pop(request_id) for request_id in ids if request_id in self._unseen]
            if ready:
                return ready
            if not self.engine.has_unfinished:
                raise AetherMindError(f"Request {', '.join(sorted(ids))} was aborted before it was answered.")
            self._unseen.update((output.request_id, output) for output in self.engine.step())

    def _forget(self, ids: Sequence[str]) -> None:
        for request_id in ids:
            self.engine.abort(request_id)
            self._unseen.pop(request_id, None)

    def _add_all(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], options: Sequence[RequestOptions]
    ) -> list[str]:
        """Queue all prompts or none."""
        ids: list[str] = []
        try:
            for prompt, one, wishes in zip(prompts, params, options, strict=True):
                read = self._read(prompt)
                self._num_requests += 1
                request_id = str(self._num_requests - 1)
                self.engine.add_request(
                    request_id, read.token_ids, one, prompt=read.text, embeddings=read.embeddings, options=wishes
                )
                ids.append(request_id)
        except AetherMindError:
            for request_id in ids:
                self.engine.abort(request_id)
            raise
        return ids


def _listed(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise InvalidArgumentError(f"prompts should be a prompt or a list of them, got {prompts!r:.80}.")
    return list(prompts)


def _options_for(prompts: Sequence[Prompt], given: Any) -> list[RequestOptions]:
    return [_NO_OPTIONS] * len(prompts) if given is None else _one_each(prompts, given, "options", RequestOptions)


def _one_each(prompts: Sequence[Prompt], given: Any, name: str, kind: type[_T]) -> list[_T]:
    """One value for all prompts, or a list of as many."""
    if isinstance(given, kind):
        return [given] * len(prompts)
    if not isinstance(given, Sequence) or not all(isinstance(one, kind) for one in given):
        raise InvalidArgumentError(f"{name} should be {kind.__name__} or a list of them, got {given!r:.80}.")
    if len(given) != len(prompts):
        raise InvalidArgumentError(
            f"{len(given)} {kind.__name__} were given for {len(prompts)} prompts; give one for all, or one each."
        )
    return list(given)


def _checked(output: RequestOutput) -> RequestOutput:
    if output.error is not None:
        raise AetherMindError(output.error)
    return output

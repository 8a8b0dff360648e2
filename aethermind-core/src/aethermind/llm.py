"""The offline API: `LLM` loads a model and generates answers to prompts. Names follow vLLM.

from aethermind import LLM, SamplingParams

llm = LLM("demo")
for output in llm.generate(["Once upon a time"], SamplingParams(temperature=0.0, max_tokens=64)):
    print(output.outputs[0].text)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from aethermind.engine.config import OPTION_DOCS, EngineConfig, EngineOptions
from aethermind.engine.engine import Engine
from aethermind.engine.observation.model_info import ModelInfo, describe_model, log_loaded
from aethermind.engine.parts import EngineParts
from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestOutput
from aethermind.engine.requests.output_coalescer import PendingOutputs
from aethermind.engine.requests.prompt_reader import EnginePrompt, Prompt, TextToEmbed
from aethermind.engine.requests.request import RequestOptions
from aethermind.errors import AetherMindError, InvalidArgumentError
from aethermind.python_api import ProgressBar, short_traceback, with_options
from aethermind.runtime import Runtime
from aethermind.sampling.params import SamplingParams, StructuredOutputs, read_sampling_defaults, with_defaults
from aethermind.text.chat_prompt import ContinuedChat, ConversationTokenCache, Message, TemplateOptions, chat_prompt

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.requests.sessions import SessionInfo
    from aethermind.graph.hooks import HookRegistry
    from aethermind.text.tokenizer import Tokenizer

__all__ = [
    "CompletionOutput",
    "EngineOptions",
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
    """A model loaded on a device. A bad argument raises an AetherMindError whose message says how to fix it.

    Threads may share an LLM, and an `AsyncEngine` may share its `engine`: concurrent requests are batched in the same
    steps. Memory is freed by `close`, at the end of `with`, and with the last reference to the LLM and its engine.
    """

    @short_traceback
    @with_options(EngineOptions, {option.name: option.default for option in fields(EngineConfig)}, docs=OPTION_DOCS)
    def __init__(
        self,
        model: str | Path = "demo",
        *,
        runtime: Runtime | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        """Load `model`: a name on the Hugging Face Hub (`org/name[@revision][:quantization]`, downloaded at its first
        use), a Hugging Face directory, a .gguf file, or the name of an installed model.

        `options` are those of an engine. `runtime` provides devices, kernels and models, by default those of all
        installed packages. `on_progress` is called with (done, total) while weights are loaded.
        """
        started = time.perf_counter()
        config = EngineConfig.of(**options)
        parts = EngineParts.of(runtime or Runtime.boot(), model, config)
        self.engine = Engine.load(parts, on_progress)
        self.tokenizer = self.engine.tokenizer
        self.info = describe_model(self.engine, time.perf_counter() - started)
        self._pending = PendingOutputs()
        self.engine.add_listener(self._pending)
        log_loaded(self.info)

    def __repr__(self) -> str:
        if not hasattr(self, "info"):
            return "<LLM that was not loaded>"
        info = self.info
        formats = f" with {', '.join(info.weight_formats)}" if info.weight_formats else ""
        return (
            f"<LLM {Path(info.model).name}{' (closed)' if self.engine.is_closed else ''}: {info.architecture}, "
            f"{info.num_parameters / 1e6:,.0f} M parameters in {info.dtype}{formats} on {info.device}, "
            f"contexts of up to {info.max_model_len:,} tokens>"
        )

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish the device's work and free the memory of weights and KV cache.

        Later calls raise an AetherMindError, and so do requests that other threads or an `AsyncEngine` have open.
        """
        self.engine.close()

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Load a LoRA adapter while the model is in use, for requests that name it; needs `max_loras`.

        Raises the errors of `Engine.load_adapter`.
        """
        self.engine.load_adapter(name, str(path))

    def unload_adapter(self, name: str) -> None:
        """Unload a LoRA adapter; open requests finish with it. InvalidArgumentError for an unknown name."""
        self.engine.unload_adapter(name)

    @property
    def cache(self) -> KVCache:
        """The bookkeeping of the KV cache: which blocks its sequences hold, their states, and what a prompt reuses.

        Use it between requests, with `engine.lock` held if other threads have requests open.
        """
        return self.engine.cache

    def num_cached_tokens(self, prompt: Prompt, *, adapter: str | None = None, cache_salt: bytes = b"") -> int:
        """Return how many tokens of a prompt the prefix cache has, so that they need not be computed."""
        engine_prompt = self._read_prompt(prompt)
        extra_key = self.engine.compiled.choose_adapter(adapter or "").key + cache_salt
        with self.engine.lock:
            return self.cache.query(engine_prompt.token_ids, extra_key)

    def list_sessions(self) -> list[SessionInfo]:
        """Describe the conversations (`RequestOptions.session`) whose keys and values are kept, or saved in files."""
        return self.engine.manage_session("list")

    def save_session(self, name: str) -> SessionInfo:
        """Write the keys and values of a session to `session_dir`; InvalidArgumentError if there is no such session."""
        return self._manage_session("save", name)

    def load_session(self, name: str) -> SessionInfo:
        """Load a session from `session_dir`. A request of a session that is not in memory loads it automatically."""
        return self._manage_session("load", name)

    def delete_session(self, name: str) -> SessionInfo:
        """Delete a session from memory and from `session_dir`; returns what was deleted."""
        return self._manage_session("delete", name)

    def protect_session(self, name: str, is_protected: bool = True) -> SessionInfo:
        """Keep a session in device memory: it neither expires nor is swapped out. False lifts the protection."""
        return self._manage_session("protect" if is_protected else "unprotect", name)

    def _manage_session(self, action: str, name: str) -> SessionInfo:
        found = self.engine.manage_session(action, name)
        if not found:
            raise InvalidArgumentError(f"There is no session {name!r:.80} to {action}; list_sessions shows all.")
        return found[0]

    @property
    def hooks(self) -> HookRegistry:
        """Registry of functions that observe values while the model runs; see `aethermind.graph.hooks`."""
        return self.engine.runner.hooks

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """The values of generation_config.json as arguments for SamplingParams. ConfigError names a bad value."""
        return read_sampling_defaults(self.engine.compiled.generation)

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer; vLLM's name for `tokenizer`."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of requests without their own: `sampling_defaults`, else those of SamplingParams."""
        return SamplingParams(**with_defaults({"max_tokens": SamplingParams().max_tokens}, self.sampling_defaults))

    @short_traceback
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
        adapter: str | Sequence[str | None] | None = None,
        use_tqdm: bool = False,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Generate answers to all prompts in one batch; outputs are in the order of the prompts.

        A prompt is a string, `{"prompt_token_ids": [...]}`, `{"prompt_embeds": array}`, or one of the first two as a
        mapping with `multi_modal_data` (see `engine.requests.prompt_reader`). `sampling_params` default to those of the
        model (see `get_default_sampling_params`). `options` are for the scheduler: priority, deadline, quotas.
        `adapter` names a LoRA adapter (see `EngineOptions.adapters`) for all prompts, or one or None for each.
        `on_output` is called with the output of a request after each step in which it has grown. `use_tqdm` shows a
        progress bar on stderr.
        """
        prompt_list = _as_list(prompts)
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        ids = self._add_all(
            prompt_list,
            _one_per_prompt(prompt_list, params, "sampling_params", SamplingParams),
            _options_for(prompt_list, options, adapter),
        )
        finished: dict[str, RequestOutput] = {}
        with (
            ProgressBar(len(ids), use_tqdm) as advance,
            closing(self._outputs(ids, only_last=on_output is None)) as outputs,
        ):
            for output in outputs:
                if on_output is not None:
                    on_output(output)
                if output.finished:
                    finished[output.request_id] = _raise_if_aborted(output)
                    advance()
        return [finished[request_id] for request_id in ids]

    @short_traceback
    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        options: RequestOptions = _NO_OPTIONS,
        adapter: str | None = None,
    ) -> Generator[RequestOutput, None, None]:
        """Answer one prompt; yields the output whenever it has grown. Closing the iterator aborts the request."""
        yield from self._stream(prompt, sampling_params, options, adapter)

    def _stream(
        self,
        prompt: Prompt | EnginePrompt,
        sampling_params: SamplingParams | None,
        options: RequestOptions,
        adapter: str | None,
    ) -> Generator[RequestOutput, None, None]:
        params = sampling_params or self.get_default_sampling_params()
        ids = self._add_all([prompt], [params], _options_for([prompt], options, adapter))
        with closing(self._outputs(ids)) as outputs:
            for output in outputs:
                yield _raise_if_aborted(output)

    @short_traceback
    @with_options(
        TemplateOptions, {"add_generation_prompt": True, "continue_final_message": False}, title="Template options"
    )
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
        adapter: str | Sequence[str | None] | None = None,
        use_tqdm: bool = False,
        on_output: Callable[[RequestOutput], None] | None = None,
        **template: Unpack[TemplateOptions],
    ) -> list[RequestOutput]:
        """Answer one conversation, or several in one batch; otherwise like `generate`.

        A conversation is a list of `{"role": "user", "content": "…"}`. `template` options are
        `chat_template`, `add_generation_prompt`, `continue_final_message`, `tools` and `chat_template_kwargs`, see
        `text.chat_prompt`.
        """
        is_single = isinstance(messages, Sequence) and any(isinstance(message, Mapping) for message in messages)
        conversations: Any = [messages] if is_single else _as_list(messages)
        prompts = [chat_prompt(self.tokenizer, conversation, **template) for conversation in conversations]
        return self.generate(
            prompts, sampling_params, options=options, adapter=adapter, use_tqdm=use_tqdm, on_output=on_output
        )

    @short_traceback
    @with_options(
        TemplateOptions, {"add_generation_prompt": True, "continue_final_message": False}, title="Template options"
    )
    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        memory: ConversationTokenCache | None = None,
        options: RequestOptions = _NO_OPTIONS,
        adapter: str | None = None,
        **template: Unpack[TemplateOptions],
    ) -> Generator[RequestOutput, None, None]:
        """Answer one conversation like `chat`; yields like `stream`.

        `memory` holds the tokens of the conversation's earlier answers as they were generated, so that the prefix cache
        finds them; tokenising their text again could give others.
        """
        text = chat_prompt(self.tokenizer, messages, **template)
        token_ids = self.tokenizer.encode(text) if memory is None else memory.encode(text)
        output: RequestOutput | None = None
        prompt = EnginePrompt(str(text), token_ids, is_chat=not isinstance(text, ContinuedChat))
        with closing(self._stream(prompt, sampling_params, options, adapter)) as outputs:
            try:
                for output in outputs:
                    yield output
            finally:
                if memory is not None and output is not None:
                    completion = output.outputs[0]
                    memory.add_answer(text, token_ids, completion.text, completion.token_ids)

    @short_traceback
    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: str | None = None,
        normalize: bool = True,
        adapter: str | None = None,
    ) -> list[npt.NDArray[np.float32]]:
        """Embed prompts: for each a vector, float32 [hidden_size], pooled from the hidden states after the final norm.

        `pooling` takes those of the last token, the mean of all, or those of the first token (`last`, `mean`, `cls`);
        the default is the model's. With `normalize` vectors have length 1. Prompts are token ids, or texts, which are
        truncated if the model prescribes that. `adapter` names a LoRA adapter. Other callers' requests go on between
        the prompts.
        """
        vectors = []
        for prompt in _as_list(prompts):
            token_ids = self._read_prompt(TextToEmbed.of(prompt)).tokens_to_embed()
            vectors.append(self.engine.embed(token_ids, pooling, is_normalized=normalize, adapter=adapter or ""))
            self.engine.lock.yield_lock()
        return vectors

    def _read_prompt(self, prompt: Prompt | EnginePrompt) -> EnginePrompt:
        if self.engine.is_closed:
            raise InvalidArgumentError("This LLM was closed; make another one.")
        return self.engine.prompts.read(prompt)

    def _outputs(self, ids: Sequence[str], *, only_last: bool = False) -> Generator[RequestOutput, None, None]:
        """Yield outputs of these requests until all have ended. Closing the iterator aborts those that have not.

        With `only_last` only the finished outputs, which saves the cost of intermediate ones.
        """
        open_ids = set(ids)
        try:
            while open_ids:
                for output in self._next_outputs(open_ids, only_last):
                    if output.finished:
                        open_ids.remove(output.request_id)
                    yield output
        finally:
            self._abort_open(ids)

    def _next_outputs(self, ids: Collection[str], only_last: bool) -> list[RequestOutput]:
        """Run steps until some of these requests have new outputs, and return those. Others may have requests open."""
        engine = self.engine
        while True:
            with engine.lock:
                if ready := self._pending.take(ids, only_last=only_last):
                    return ready
                if engine.is_closed:
                    raise AetherMindError("This LLM was closed before the request was answered.")
                if not engine.has_unfinished:
                    raise AetherMindError(_aborted_message(*ids))
                engine.advance()
            engine.lock.yield_lock()

    def _abort_open(self, ids: Sequence[str]) -> None:
        with self.engine.lock:
            for request_id in ids:
                if self._pending.drop(request_id):
                    self.engine.abort(request_id)

    def _add_all(
        self,
        prompts: Sequence[Prompt | EnginePrompt],
        params: Sequence[SamplingParams],
        options: Sequence[RequestOptions],
    ) -> list[str]:
        """Add a request for each prompt and return their ids; if one fails, abort those that were added."""
        ids: list[str] = []
        try:
            for prompt, prompt_params, prompt_options in zip(prompts, params, options, strict=True):
                engine_prompt = self._read_prompt(prompt)
                with self.engine.lock:
                    request_id = self.engine.free_id()
                    ids.append(request_id)
                    self._pending.open(request_id)
                    self.engine.add_request(
                        request_id,
                        engine_prompt.token_ids,
                        prompt_params,
                        prompt=engine_prompt.text,
                        embeddings=engine_prompt.embeddings,
                        options=prompt_options,
                        is_chat=engine_prompt.is_chat,
                    )
        except BaseException:  # Ctrl-C and a plugin's own errors, too
            self._abort_open(ids)
            raise
        return ids


def _as_list(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise InvalidArgumentError(
            f"prompts should be a prompt or a list of them, got {prompts!r:.80}.", param="prompts"
        )
    return list(prompts)


def _options_for(prompts: Sequence[Prompt | EnginePrompt], given: Any, adapter: Any) -> list[RequestOptions]:
    options = (
        [_NO_OPTIONS] * len(prompts) if given is None else _one_per_prompt(prompts, given, "options", RequestOptions)
    )
    if adapter is None:
        return options
    names = [adapter] * len(prompts) if isinstance(adapter, str) else adapter
    if not isinstance(names, Sequence) or len(names) != len(prompts):
        raise InvalidArgumentError(
            f"adapter should be a name, or a name or None for each of {len(prompts)} prompts, got {adapter!r:.80}.",
            param="adapter",
        )
    return [
        option if name is None else replace(option, adapter=name) for option, name in zip(options, names, strict=True)
    ]


def _one_per_prompt(prompts: Sequence[Prompt | EnginePrompt], given: Any, name: str, kind: type[_T]) -> list[_T]:
    """Return a list with a value for each prompt, from one value for all or from such a list."""
    if isinstance(given, kind):
        return [given] * len(prompts)
    if not isinstance(given, Sequence) or not all(isinstance(value, kind) for value in given):
        raise InvalidArgumentError(
            f"{name} should be {kind.__name__} or a list of them, got {given!r:.80}.", param=name
        )
    if len(given) != len(prompts):
        raise InvalidArgumentError(
            f"{name} holds {len(given)} {kind.__name__} for {len(prompts)} prompt{'s' * (len(prompts) != 1)}; "
            "give one for all, or one each.",
            param=name,
        )
    return list(given)


def _raise_if_aborted(output: RequestOutput) -> RequestOutput:
    """Return the output; AetherMindError if the request failed, or if the engine or another user of it aborted it."""
    output.raise_error()
    if output.finished and any(completion.finish_reason == "abort" for completion in output.outputs):
        raise AetherMindError(_aborted_message(output.request_id))
    return output


def _aborted_message(*request_ids: str) -> str:
    return f"Request {', '.join(sorted(request_ids))} was aborted before it was answered."

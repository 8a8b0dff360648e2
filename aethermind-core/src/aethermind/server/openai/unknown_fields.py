"""Unknown fields of requests: those that are ignored with a warning, and those of other servers that are errors.

A field that this server does not know is ignored with a warning, as other servers do. The fields in these tables are
the exception, because the output would be wrong without them. Their neutral values, which ask for the default
behaviour, are accepted; every other value is an error that says what to send instead. A null is always neutral.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.errors import did_you_mean
from aethermind.log import get_logger

__all__ = [
    "IgnoredFields",
    "UNSUPPORTED_IN_CHATS",
    "UNSUPPORTED_IN_COMPLETIONS",
    "UNSUPPORTED_IN_EMBEDDINGS",
    "UNSUPPORTED_IN_FORMATS",
    "UNSUPPORTED_IN_GENERATION",
    "UNSUPPORTED_IN_MESSAGES",
    "UNSUPPORTED_IN_MESSAGES_API",
    "UnsupportedField",
]

_MAX_NAMES = 100
"""Names that are remembered and logged, which bounds the memory and the log that clients can fill."""

_MAX_NAME_CHARS = 80

_log = get_logger(__name__)


class IgnoredFields:
    """The unknown fields that a server has ignored, each of which is logged once. Mutable."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def warn_once(self, name: str, known: Iterable[str] = ()) -> None:
        """Log that the field `name` is ignored, with the most similar name of `known`."""
        name = name[:_MAX_NAME_CHARS]
        if name in self._names or len(self._names) == _MAX_NAMES:
            return
        self._names.add(name)
        _log.warning(
            "a request has the unknown field %r, which is ignored%s This is logged once; with --strict-requests such "
            "requests are errors.",
            name,
            did_you_mean(name, known),
        )


@dataclass(frozen=True, slots=True)
class UnsupportedField:
    """A field that would change the output: its neutral values, and what to do instead of sending another value."""

    neutral: tuple[Any, ...] = ()
    instead: str = "Leave it out."

    def is_neutral(self, value: Any) -> bool:
        """Whether a value asks for the default behaviour. Numbers and booleans are different values."""
        return any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in self.neutral
        )


def _use_instead(name: str, *neutral: Any) -> UnsupportedField:
    """A field that has an equivalent on this server, `name`."""
    return UnsupportedField(neutral, f"Use {name}.")


def _no_equivalent(*neutral: Any) -> UnsupportedField:
    """A field that has no equivalent on this server."""
    return UnsupportedField(neutral)


_NO_BEAMS = "Beam search is not supported; leave it out."
_STRUCTURED = "structured_outputs, such as {}"

_FIELDS_OF_OTHER_ENDPOINTS: dict[str, UnsupportedField] = {
    "messages": _use_instead("/v1/chat/completions, or give input"),
    "prompt": _use_instead("messages or input, or /v1/completions"),
    "input": _use_instead("messages or prompt, or /v1/responses"),
    "instructions": _use_instead("a message of the system", ""),
    "previous_response_id": UnsupportedField((), "Nothing is stored; send the whole conversation as input."),
    "conversation": UnsupportedField((), "Nothing is stored; send the whole conversation as input."),
    "background": _no_equivalent(False),
    "include": _no_equivalent([]),
    "text": _use_instead("response_format", {}),
    "truncation": _no_equivalent("disabled"),
    "max_tokens": _use_instead("max_output_tokens"),
    "max_completion_tokens": _use_instead("max_tokens or max_output_tokens"),
    "max_output_tokens": _use_instead("max_tokens"),
    "n": _no_equivalent(1),
    "echo": _no_equivalent(False),
    "logprobs": _no_equivalent(False),
    "top_logprobs": _no_equivalent(0),
    "presence_penalty": _no_equivalent(0),
    "frequency_penalty": _no_equivalent(0),
    "logit_bias": _no_equivalent({}),
    "bad_words": _no_equivalent([]),
    "allowed_token_ids": _no_equivalent(),
    "stop_token_ids": _no_equivalent([]),
    "response_format": _use_instead("text.format", {"type": "text"}),
    "tools": _use_instead("/v1/chat/completions", []),
    "tool_choice": _use_instead("/v1/chat/completions", "none", "auto"),
    "modalities": _no_equivalent(["text"]),
    "chat_template_kwargs": _use_instead("/v1/chat/completions", {}),
}
"""Fields that other endpoints of this server have."""

_FIELDS_OF_VLLM: dict[str, UnsupportedField] = {
    "best_of": UnsupportedField((1,), "Use n, and choose among the completions."),
    "use_beam_search": UnsupportedField((False,), _NO_BEAMS),
    "length_penalty": UnsupportedField((1,), _NO_BEAMS),
    "early_stopping": UnsupportedField((False,), _NO_BEAMS),
    "include_stop_str_in_output": UnsupportedField((False,), "stop_reason names the string that ended the completion."),
    "suffix": UnsupportedField(("",), "To fill in the middle of a text, use /v1/completions."),
    "add_generation_prompt": UnsupportedField((True,), "Use /v1/chat/completions."),
    "continue_final_message": UnsupportedField((False,), "Use /v1/chat/completions."),
    "guided_whitespace_pattern": _no_equivalent(),
    "guided_decoding_backend": _no_equivalent("auto", "guidance", "llguidance"),
    "truncate_prompt_tokens": UnsupportedField((), "/tokenize counts the tokens of a prompt; shorten it to those."),
    "prompt_logprobs": UnsupportedField((), "/v1/completions has them with echo and logprobs."),
    "return_token_ids": UnsupportedField((False,), "/tokenize has the ids of a text."),
    "return_tokens_as_token_ids": _no_equivalent(False),
    "logits_processors": _no_equivalent([]),
    "vllm_xargs": _no_equivalent({}),
    "structural_tag": _use_instead("structured_outputs"),
    "chat_template": UnsupportedField((), "The server takes one when it starts: --chat-template FILE."),
    "documents": UnsupportedField(([],), "Write them into a message, or give them in chat_template_kwargs."),
    "thinking_token_budget": _no_equivalent(),
}

_FIELDS_OF_LLAMA_CPP_AND_OLLAMA: dict[str, UnsupportedField] = {
    "n_predict": _use_instead("max_tokens"),
    "num_predict": _use_instead("max_tokens"),
    "n_probs": _use_instead("logprobs", 0),
    "repeat_penalty": _use_instead("repetition_penalty", 1),
    "typical_p": _no_equivalent(1),
    "tfs_z": _no_equivalent(1),
    "mirostat": _no_equivalent(0),
    "dynatemp_range": _no_equivalent(0),
    "xtc_probability": _no_equivalent(0),
    "dry_multiplier": _no_equivalent(0),
    "samplers": _no_equivalent([]),
    "grammar": _use_instead(_STRUCTURED.format('{"grammar": "…"}'), ""),
    "json_schema": _use_instead('response_format {"type": "json_schema", "json_schema": {…}}', {}),
    "lora": UnsupportedField(([],), "Name an adapter of the server as model."),
    "options": UnsupportedField(({},), "Give its fields by themselves, in the names of OpenAI's API."),
    "format": _use_instead("response_format", ""),
    "think": _use_instead('chat_template_kwargs, such as {"enable_thinking": true}'),
    "system": _use_instead("a message of the system", "", []),
    "raw": _use_instead("/v1/completions", False),
    "template": UnsupportedField(("",), "The server takes one when it starts: --chat-template FILE."),
}

_FIELDS_OF_OTHER_SERVERS: dict[str, UnsupportedField] = {
    "functions": _use_instead("tools", []),
    "function_call": _use_instead("tool_choice", "none", "auto"),
    "web_search_options": _no_equivalent(),
    "audio": _no_equivalent(),
    "enable_thinking": _use_instead('chat_template_kwargs, such as {"enable_thinking": false}'),
    "thinking": _use_instead('chat_template_kwargs, such as {"enable_thinking": true}', {"type": "disabled"}),
    "thinking_budget": _no_equivalent(),
    "stop_sequences": _use_instead("stop", []),
    "random_seed": _use_instead("seed"),
    "safe_prompt": _no_equivalent(False),
    "do_sample": _use_instead("temperature 0", True),
    "num_beams": UnsupportedField((1,), _NO_BEAMS),
    "num_return_sequences": _use_instead("n", 1),
    "no_repeat_ngram_size": _no_equivalent(0),
    "penalty_alpha": _no_equivalent(0),
    "encoder_repetition_penalty": _no_equivalent(1),
    "max_new_tokens": _use_instead("max_tokens"),
    "max_length": _use_instead("max_tokens"),
    "min_new_tokens": _use_instead("min_tokens", 0),
    "min_length": _use_instead("min_tokens", 0),
    "eos_token_id": _use_instead("stop_token_ids"),
    "regex": _use_instead(_STRUCTURED.format('{"regex": "…"}'), ""),
    "ebnf": _use_instead(_STRUCTURED.format('{"grammar": "…"}'), ""),
    "separate_reasoning": _no_equivalent(True),
    "include_reasoning": _no_equivalent(True),
    "no_stop_trim": _no_equivalent(False),
    "custom_logit_processor": _no_equivalent(),
    "return_hidden_states": _no_equivalent(False),
    "lora_path": UnsupportedField((), "Name an adapter of the server as model."),
    "adapter_id": UnsupportedField((), "Name an adapter of the server as model."),
}
"""Fields of OpenAI's older API, of SGLang, TGI, Mistral, Anthropic and transformers."""

UNSUPPORTED_IN_GENERATION: Mapping[str, UnsupportedField] = (
    _FIELDS_OF_OTHER_ENDPOINTS | _FIELDS_OF_VLLM | _FIELDS_OF_LLAMA_CPP_AND_OLLAMA | _FIELDS_OF_OTHER_SERVERS
)
"""Unsupported fields of generation requests."""

UNSUPPORTED_IN_CHATS: Mapping[str, UnsupportedField] = {
    **UNSUPPORTED_IN_GENERATION,
    "add_special_tokens": _no_equivalent(False),
}
"""The same for chats, where the chat template writes the special tokens."""

UNSUPPORTED_IN_MESSAGES_API: Mapping[str, UnsupportedField] = {
    **UNSUPPORTED_IN_CHATS,
    "max_completion_tokens": _use_instead("max_tokens"),
    "max_output_tokens": _use_instead("max_tokens"),
    "stop": _use_instead("stop_sequences", []),
    "instructions": _use_instead("system", ""),
    "response_format": _use_instead("output_config.format", {"type": "text"}),
    "reasoning_effort": _use_instead("output_config.effort"),
    "enable_thinking": _use_instead('thinking, such as {"type": "disabled"}'),
    "mcp_servers": UnsupportedField(([],), "Give the servers' tools as tools."),
    "container": _no_equivalent(),
}
"""The same for Anthropic's Messages API."""

UNSUPPORTED_IN_COMPLETIONS: Mapping[str, UnsupportedField] = {
    **UNSUPPORTED_IN_GENERATION,
    "add_special_tokens": _no_equivalent(True),
}
"""The same for text prompts, to which the tokenizer adds special tokens such as BOS."""

UNSUPPORTED_IN_EMBEDDINGS: Mapping[str, UnsupportedField] = {
    "messages": _use_instead("input"),
    "prompt": _use_instead("input"),
    "normalize": UnsupportedField((True,), "Vectors have length 1; leave it out."),
    "normalized": UnsupportedField((True,), "Vectors have length 1; leave it out."),
    "truncate": _no_equivalent("NONE", False),
    "truncate_prompt_tokens": UNSUPPORTED_IN_GENERATION["truncate_prompt_tokens"],
    "add_special_tokens": UNSUPPORTED_IN_COMPLETIONS["add_special_tokens"],
    "input_type": UnsupportedField((), "Write the model's own words for queries and passages before the text."),
    "prompt_name": UnsupportedField((), "Write the prompt before the text."),
    "task": UnsupportedField((), "Write the model's own words for it before the text."),
    "output_dtype": _no_equivalent("float"),
}
"""Unsupported fields of embedding requests."""

UNSUPPORTED_IN_MESSAGES: Mapping[str, UnsupportedField] = {
    "function_call": _use_instead("tool_calls"),
    "prefix": UnsupportedField((False,), "To continue a text as it stands, use /v1/completions."),
    "images": UnsupportedField(([],), "Images are not supported."),
    "audio": UnsupportedField((), "Audio is not supported."),
}
"""Unsupported fields of a message."""

UNSUPPORTED_IN_FORMATS: Mapping[str, UnsupportedField] = {
    "value": _use_instead('json_schema, such as {"name": "…", "schema": {…}}'),
    "structures": _use_instead(_STRUCTURED.format('{"grammar": "…"}'), []),
    "triggers": _use_instead(_STRUCTURED.format('{"grammar": "…"}'), []),
}
"""Unsupported fields of response_format: text-generation-inference's schema or regex, and structural tags."""

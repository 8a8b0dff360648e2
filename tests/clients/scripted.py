"""A server whose model writes the answers that a prompt carries, so that clients and agents can be tested.

A prompt has the answers as `script:BASE64;`, of a JSON list of strings: the first turn of the model after it is the
first answer, and so on; the last one is repeated. A prompt without a script is answered by `DEFAULT`, and so is one
without tools where the script has a call, because agents also send the user's text to have it summarised.

Everything else is what `aethermind serve` runs: tokenizer, chat template, engine, sampler, constraints, parsers, HTTP.
The model is random and tiny. It writes an answer because a constraint, as of `structured_outputs`, allows nothing else.
`python -m tests.clients.scripted` runs it alone.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from tests.end_to_end.models import DEMO, copy_demo
from tests.server.conftest import serving

from aethermind import LLM, SamplingParams
from aethermind.engine.requests.prompt_reader import EnginePrompt
from aethermind.engine.serving.async_engine import AsyncEngine
from aethermind.sampling.params import StructuredOutputs
from aethermind.server import ModelPool
from aethermind.server.pool_entry import ModelSource
from aethermind.server.served_model import ServedModel

__all__ = [
    "DEFAULT",
    "MODEL",
    "TEMPLATE",
    "ScriptedEngine",
    "answer_to",
    "scripted_model",
    "scripted_server",
    "serving_scripted",
]

MODEL = "scripted"
DEFAULT = "All is well."

TEMPLATE = """
{%- macro text(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content or () %}
{{- part.text }}{% endfor %}{% endif %}{% endmacro %}
{%- if tools %}<|im_start|>system
<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools><|im_end|>
{% endif %}
{%- set asked = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == "user" %}{% set asked.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content and loop.index0 > asked.last %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ text(message.content) }}
{%- for call in message.tool_calls or () %}{{ "\n" if message.content or not loop.first }}<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""A template in the manner of Qwen's: the reasoning before the last question is dropped."""

_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_SCRIPT = re.compile(r"script:([A-Za-z0-9_-]+=*);")
_SHAPES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
_SHAPES |= {"num_attention_heads": 1, "num_key_value_heads": 1}
_MAX_MODEL_LEN = 131072


def answer_to(prompt: str) -> str:
    """The answer that the last script in a rendered prompt has for this turn."""
    *_, last = (None, *_SCRIPT.finditer(prompt))
    if last is None:
        return DEFAULT
    answers: list[str] = json.loads(base64.urlsafe_b64decode(last[1]))
    if "<tools>" not in prompt and any("<tool_call>" in answer for answer in answers):
        return DEFAULT
    turn = prompt.count("<|im_start|>assistant\n", last.end()) - 1
    return answers[min(max(turn, 0), len(answers) - 1)] if answers else DEFAULT


def grammar_of(answer: str) -> str:
    """A grammar, in llguidance's kind of Lark, whose only text is `answer`, with tags as the tokens that they are."""
    parts = [part for part in re.split(f"({'|'.join(_TAGS)})", answer) if part]
    return "start: " + " ".join(part if part in _TAGS else json.dumps(part, ensure_ascii=False) for part in parts)


def scripted_model(folder: Path, config: Mapping[str, Any] | None = None, template: str = TEMPLATE) -> Path:
    """The directory of a tiny model, with the demo model's tokenizer and the tags of reasoning and calls as tokens."""
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    first = max(token["id"] for token in tokenizer["added_tokens"]) + 1
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokenizer["added_tokens"] += [{"id": first + number, "content": tag, **plain} for number, tag in enumerate(_TAGS)]
    shapes = {**_SHAPES, "vocab_size": first + len(_TAGS), "max_position_embeddings": _MAX_MODEL_LEN}
    settings = {**json.loads((DEMO / "tokenizer_config.json").read_text()), "chat_template": template}
    files = {"tokenizer.json": json.dumps(tokenizer).encode(), "tokenizer_config.json": json.dumps(settings).encode()}
    return copy_demo(folder / "model", {**shapes, **(config or {})}, files)


class ScriptedEngine(AsyncEngine):
    """An engine whose requests write the answers of their prompts' scripts."""

    async def _add(self, name: str, prompt: EnginePrompt, params: SamplingParams, *others: Any) -> None:
        if prompt.is_chat and (params.structured_outputs is None or params.structured_outputs.structural_tag):
            if (compiling := self._engine.prepare(params)) is not None:
                await asyncio.wrap_future(compiling)  # an error if the declared tools make no constraint
            params = replace(
                params,
                structured_outputs=StructuredOutputs(grammar=grammar_of(answer_to(prompt.text or ""))),
                # This excludes nothing, but each token is sampled: forced tokens would be appended at once.
                allowed_token_ids=tuple(range(self._engine.compiled.model.config.vocab_size)),
            )
        await super()._add(name, prompt, params, *others)


@contextmanager
def serving_scripted(llm: LLM, engine_class: type[ScriptedEngine] = ScriptedEngine, **options: Any) -> Iterator[str]:
    """Serve a model whose answers are scripted; yields the address. `options` are those of `running`."""

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[ServedModel]:
        async with engine_class(llm.engine) as engine:
            yield ServedModel.of(MODEL, llm, engine)

    with serving(ModelPool([ModelSource(MODEL, opened, loads_at_start=True)]), **options) as address:
        yield address


@contextmanager
def scripted_server() -> Iterator[str]:
    """Run a server with a long context; yields its address."""
    with TemporaryDirectory() as folder:
        options: dict[str, Any] = {"device": "cpu", "load_format": "dummy", "max_num_seqs": 8}
        model = scripted_model(Path(folder))
        with LLM(model, max_model_len=_MAX_MODEL_LEN, **options) as llm, serving_scripted(llm) as address:
            yield address


if __name__ == "__main__":
    with scripted_server() as address, suppress(KeyboardInterrupt):
        print(address, flush=True)
        Event().wait()

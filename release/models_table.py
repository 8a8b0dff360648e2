"""`python -m release.models_table` writes the table of supported models in docs/using/models.md.

It comes from what the packages of this tree register, and from the conformance cases in which they are compared with
transformers; a test compares the page with what this program would write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from release.distributions import ROOT, distributions

from aethermind import Runtime
from aethermind.cache.layers import Window, attention_of, has_latent, recurrent_of
from aethermind.model.architecture import TextEncoder, cache_layout
from aethermind.testing.families import ModelCase

__all__ = ["PAGE", "with_table"]

PAGE = ROOT / "docs/using/models.md"
_BEGIN, _END = "<!-- models: written by `python -m release.models_table` -->\n", "<!-- end of models -->\n"

_PUBLISHED: Mapping[str, str] = {
    "Qwen2ForCausalLM": "Qwen2, Qwen2.5",
    "Qwen3ForCausalLM": "Qwen3, Qwen3-Embedding",
    "Qwen2MoeForCausalLM": "Qwen1.5-MoE, Qwen2-57B-A14B",
    "Qwen3MoeForCausalLM": "Qwen3-30B-A3B, Qwen3-235B-A22B",
    "Qwen3NextForCausalLM": "Qwen3-Next-80B-A3B",
    "Qwen3_5ForCausalLM": "Qwen3.5 (text)",
    "Qwen3_5MoeForCausalLM": "Qwen3.5 with experts (text)",
    "Qwen3_5ForConditionalGeneration": "Qwen3.5: the decoder of models that read images",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3.5 with experts: the decoder of models that read images",
    "LlamaForCausalLM": "Llama 2, 3, 3.1, 3.2 (text), and others with this architecture",
    "MistralForCausalLM": "Mistral 7B¹",
    "MixtralForCausalLM": "Mixtral 8x7B, 8x22B",
    "OlmoeForCausalLM": "OLMoE",
    "SmolLM3ForCausalLM": "SmolLM3",
    "GraniteForCausalLM": "Granite 3 (dense)",
    "Olmo2ForCausalLM": "OLMo 2",
    "Olmo3ForCausalLM": "OLMo 3",
    "CohereForCausalLM": "Command R, Aya",
    "Cohere2ForCausalLM": "Command R7B",
    "Ernie4_5ForCausalLM": "ERNIE 4.5 0.3B",
    "StableLmForCausalLM": "StableLM 3B, StableLM 2 1.6B",
    "Starcoder2ForCausalLM": "StarCoder2",
    "GptOssForCausalLM": "gpt-oss-20b, gpt-oss-120b",
    "PhiForCausalLM": "Phi-1, Phi-1.5, Phi-2",
    "Phi3ForCausalLM": "Phi-3, Phi-3.5 mini, Phi-4, Phi-4-mini",
    "GlmForCausalLM": "GLM-4-9B (`-hf`)",
    "Glm4ForCausalLM": "GLM-4-0414, GLM-Z1-0414",
    "Glm4MoeForCausalLM": "GLM-4.5, GLM-4.5-Air, GLM-4.6",
    "Gemma2ForCausalLM": "Gemma 2",
    "Gemma3ForCausalLM": "Gemma 3 (text)",
    "Gemma3ForConditionalGeneration": "Gemma 3: the decoder of models that read images",
    "DeepseekV2ForCausalLM": "DeepSeek V2, V2-Lite",
    "DeepseekV3ForCausalLM": "DeepSeek V3, R1; Kimi K2",
    "Mamba2ForCausalLM": "Mamba 2, Codestral Mamba",
    "FalconH1ForCausalLM": "Falcon-H1",
    "Lfm2ForCausalLM": "LFM2 (dense)",
    "GPT2LMHeadModel": "GPT-2",
    "GPTNeoXForCausalLM": "GPT-NeoX-20B, Pythia",
    "BloomForCausalLM": "BLOOM, BLOOMZ",
    "MptForCausalLM": "MPT-7B, MPT-30B",
    "BertModel": "BERT and sentence encoders based on it: vectors only",
}
"""The names under which models of an architecture are published."""
_GGUF_AS = {
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Olmo3ForCausalLM": "olmo2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Qwen3_5ForConditionalGeneration": "qwen35",
    "Qwen3_5MoeForConditionalGeneration": "qwen35moe",
}
"""Architectures of which .gguf files have another one's name."""


@dataclass(frozen=True)
class _Row:
    """One architecture."""

    name: str
    runtime: Runtime

    @cached_property
    def package(self) -> str:
        return self.runtime.architectures.provider(self.name)

    @cached_property
    def cases(self) -> tuple[ModelCase, ...]:
        cases: tuple[ModelCase, ...] = self.runtime.architectures.find_cases(self.name) or ()
        return tuple(case for case in cases if case.architecture == self.name)

    @cached_property
    def models(self) -> list[Any]:
        architecture = self.runtime.architectures.get(self.name)
        return [architecture.create(dict(case.config)) for case in self.cases]

    @property
    def layers(self) -> str:
        """The kinds of layers that its conformance cases have."""
        if any(isinstance(model, TextEncoder) for model in self.models):
            return "attention in both directions"
        entries = [entry for model in self.models for entry in cache_layout(model)]
        has_attention = not entries or any(attention_of(entry) is not None for entry in entries)
        attention = "latent attention" if has_latent(entries) else "attention"
        kinds = [attention] if has_attention else []
        if any(recurrent_of(entry) is not None for entry in entries):
            kinds.append("recurrent state")
        if any(isinstance(entry, Window) for entry in entries):
            kinds.append("sliding window")
        if any(getattr(model, "mixture", None) is not None for model in self.models):
            kinds.append("mixture of experts")
        return ", ".join(kinds)

    @property
    def gguf(self) -> str:
        families = self.runtime.gguf_families
        names = [name for name in families.names() if families.get(name).architecture == self.name]
        names += [_GGUF_AS[self.name]] if self.name in _GGUF_AS else []
        return ", ".join(f"`{name}`" for name in names) or "no"

    @property
    def answers(self) -> str:
        """What its answer format finds in an answer."""
        found = self.runtime.answer_formats.find(self.name)
        if found is None:
            return "no"
        parts = [f"`{found.reasoning[0]}`"] if found.reasoning else []
        parts += [f"`{syntax.opening}`" for syntax in found.tool_calls]
        parts += ["harmony"] if found.is_harmony else []
        parts += ["bare calls"] if found.has_bare_calls else []
        return ", ".join(parts) or "no"

    def __str__(self) -> str:
        cells = (
            _PUBLISHED[self.name],
            f"`{self.name}`",
            self.layers,
            self.gguf,
            self.answers.replace("|", r"\|"),
            str(len(self.cases)),
            f"`{self.package}`",
        )
        return f"| {' | '.join(cells)} |\n"


def with_table(page: str) -> str:
    """The page with the current table between its two marks."""
    runtime = Runtime.boot()
    own = {one.name for one in distributions()}
    names = [name for name in runtime.architectures.names() if runtime.architectures.provider(name) in own]
    order = list(_PUBLISHED)
    rows = [_Row(name, runtime) for name in sorted(names, key=order.index)]
    head = ("Models", "`architectures`", "Layers", "`.gguf`", "Thoughts and calls", "Cases", "Package")
    table = f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n" + "".join(map(str, rows))
    return re.sub(
        f"({re.escape(_BEGIN)}).*?({re.escape(_END)})", lambda found: found[1] + table + found[2], page, flags=re.DOTALL
    )


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""The page docs/checkpoint-fields.md out of the tables: `python -m tests.documentation.fields_page`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import aethermind_bert.architecture
import aethermind_deepseek.architecture
import aethermind_gemma.architecture
import aethermind_glm.architecture
import aethermind_glm.mixture
import aethermind_gpt2.architecture
import aethermind_gpt2.bloom
import aethermind_gpt2.gpt_neox
import aethermind_gpt2.mpt
import aethermind_gpt_oss.architecture
import aethermind_llama.architecture
import aethermind_llama.cohere
import aethermind_llama.ernie
import aethermind_llama.granite
import aethermind_llama.mixture
import aethermind_llama.olmo
import aethermind_llama.smollm3
import aethermind_llama.stablelm
import aethermind_llama.starcoder2
import aethermind_mamba.falcon_h1
import aethermind_mamba.lfm2
import aethermind_mamba.mamba2
import aethermind_phi.architecture
import aethermind_phi.phi2
import aethermind_qwen2.architecture
import aethermind_qwen2.hybrid
import aethermind_qwen2.mixture
from aethermind.model.known_fields import (
    CONFIG_FIELDS,
    GENERATION_FIELDS,
    QUANTIZATION_FIELDS,
    TOKENIZER_FIELDS,
    FieldTable,
    Handling,
)

__all__ = ["PAGE", "fields_page"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checkpoint-fields.md"

_INTRODUCTION = """\
# Fields of checkpoints

What AetherMind does with each field of the files that are published with models. *Used*: the value changes what is
computed. *Ignored*: no value of it changes an answer here. *Not applied*: the model answers without it, and a warning
says so when it is loaded; values that ask for nothing are silent. *Refused*: the model is not loaded, because its
answers would be wrong. Fields that are in no table are named in one warning and ignored.
"""
_TABLES: Mapping[str, FieldTable] = {
    "config.json": CONFIG_FIELDS,
    "config.json of Qwen2 and Qwen2.5": aethermind_qwen2.architecture.QWEN2.known_fields,
    "config.json of Qwen3": aethermind_qwen2.architecture.QWEN3.known_fields,
    "config.json of Qwen2-MoE": aethermind_qwen2.mixture.QWEN2_MOE.known_fields,
    "config.json of Qwen3-MoE": aethermind_qwen2.mixture.QWEN3_MOE.known_fields,
    "config.json of Qwen3-Next": aethermind_qwen2.hybrid.QWEN3_NEXT.known_fields,
    "config.json of Qwen3.5": aethermind_qwen2.hybrid.QWEN3_5.known_fields,
    "config.json of Qwen3.5 with images": aethermind_qwen2.hybrid.QWEN3_5_MOE_WITH_IMAGES.known_fields,
    "config.json of Llama": aethermind_llama.architecture.LLAMA.known_fields,
    "config.json of Mistral": aethermind_llama.architecture.MISTRAL.known_fields,
    "config.json of Mixtral": aethermind_llama.mixture.MIXTRAL.known_fields,
    "config.json of OLMoE": aethermind_llama.mixture.OLMOE.known_fields,
    "config.json of SmolLM3": aethermind_llama.smollm3.SMOLLM3.known_fields,
    "config.json of Granite": aethermind_llama.granite.GRANITE.known_fields,
    "config.json of Command R": aethermind_llama.cohere.COHERE.known_fields,
    "config.json of Command R7B": aethermind_llama.cohere.COHERE2.known_fields,
    "config.json of OLMo 2": aethermind_llama.olmo.OLMO2.known_fields,
    "config.json of OLMo 3": aethermind_llama.olmo.OLMO3.known_fields,
    "config.json of ERNIE 4.5": aethermind_llama.ernie.ERNIE4_5.known_fields,
    "config.json of StableLM": aethermind_llama.stablelm.STABLELM.known_fields,
    "config.json of StarCoder2": aethermind_llama.starcoder2.STARCODER2.known_fields,
    "config.json of Phi-1 and Phi-2": aethermind_phi.phi2.PHI2.known_fields,
    "config.json of Phi-3 and Phi-4": aethermind_phi.architecture.PHI3.known_fields,
    "config.json of GLM-4": aethermind_glm.architecture.GLM4.known_fields,
    "config.json of GLM-4.5": aethermind_glm.mixture.GLM4_MOE.known_fields,
    "config.json of Gemma 2": aethermind_gemma.architecture.GEMMA2.known_fields,
    "config.json of Gemma 3": aethermind_gemma.architecture.GEMMA3.known_fields,
    "config.json of Gemma 3 with images": aethermind_gemma.architecture.GEMMA3_WITH_IMAGES.known_fields,
    "config.json of DeepSeek-V2": aethermind_deepseek.architecture.DEEPSEEK_V2.known_fields,
    "config.json of DeepSeek-V3": aethermind_deepseek.architecture.DEEPSEEK_V3.known_fields,
    "config.json of gpt-oss": aethermind_gpt_oss.architecture.GPT_OSS.known_fields,
    "config.json of Mamba 2": aethermind_mamba.mamba2.MAMBA2.known_fields,
    "config.json of Falcon-H1": aethermind_mamba.falcon_h1.FALCON_H1.known_fields,
    "config.json of LFM2": aethermind_mamba.lfm2.LFM2.known_fields,
    "config.json of GPT-2": aethermind_gpt2.architecture.GPT2.known_fields,
    "config.json of GPT-NeoX": aethermind_gpt2.gpt_neox.GPT_NEOX.known_fields,
    "config.json of BLOOM": aethermind_gpt2.bloom.BLOOM.known_fields,
    "config.json of MPT": aethermind_gpt2.mpt.MPT.known_fields,
    "config.json of BERT": aethermind_bert.architecture.BERT.known_fields,
    "generation_config.json": GENERATION_FIELDS,
    "tokenizer_config.json": TOKENIZER_FIELDS,
    "quantization_config, quantize_config.json, quant_config.json": QUANTIZATION_FIELDS,
}


def fields_page() -> str:
    """The page's text."""
    parts = [_INTRODUCTION]
    for heading, table in _TABLES.items():
        parts.append("\n".join([f"## {heading}", "", "| Field | | |", "|---|---|---|", *_rows(table), ""]))
    return "\n".join(parts)


def _rows(table: FieldTable) -> Iterator[str]:
    """Fields with the same text share a row, those of a handling stand together."""
    for handling in Handling:
        by_text: dict[str, list[str]] = {}
        for name, field in table.items():
            if field.handling is handling:
                by_text.setdefault(field.text, []).append(f"`{name}`")
        for text, names in by_text.items():
            yield f"| {', '.join(names)} | {handling} | {text} |"


if __name__ == "__main__":
    PAGE.write_text(fields_page(), encoding="utf-8")

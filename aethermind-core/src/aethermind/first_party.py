"""First-party packages, which are released with the core: the names that each provides, and how to install it.

An installation may lack any of them. A message about a missing architecture or device then names the package that
provides it. Tests compare this table with what the packages register.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from aethermind import env

__all__ = ["FIRST_PARTY", "Kind", "install_advice", "pip_install_command", "provider_of"]

Kind = Literal["architecture", "device", "gguf", "model"]
"""The kinds of provided names: an architecture in config.json, a device, a GGUF `general.architecture`, a bundled
model."""

FIRST_PARTY: Mapping[str, Mapping[Kind, tuple[str, ...]]] = {
    "aethermind-bert": {
        "architecture": (
            "BertForMaskedLM",
            "BertForPreTraining",
            "BertForSequenceClassification",
            "BertForTokenClassification",
            "BertModel",
            "bert",
        )
    },
    "aethermind-cann": {"device": ("cann",)},
    "aethermind-cpu": {"device": ("cpu",)},
    "aethermind-cuda": {"device": ("cuda",)},
    "aethermind-deepseek": {
        "architecture": (
            "DeepseekV2ForCausalLM",
            "DeepseekV2Model",
            "DeepseekV3ForCausalLM",
            "DeepseekV3Model",
            "deepseek_v2",
            "deepseek_v3",
            "kimi_k2",
        ),
        "gguf": ("deepseek2",),
    },
    "aethermind-gemma": {
        "architecture": (
            "Gemma2ForCausalLM",
            "Gemma2Model",
            "Gemma3ForCausalLM",
            "Gemma3ForConditionalGeneration",
            "Gemma3TextModel",
            "gemma2",
            "gemma3",
            "gemma3_text",
        ),
        "gguf": ("gemma2", "gemma3"),
    },
    "aethermind-glm": {
        "architecture": (
            "Glm4ForCausalLM",
            "Glm4Model",
            "Glm4MoeForCausalLM",
            "Glm4MoeModel",
            "GlmForCausalLM",
            "GlmModel",
            "glm",
            "glm4",
            "glm4_moe",
        ),
        "gguf": ("glm4", "glm4moe"),
    },
    "aethermind-gpt-oss": {
        "architecture": ("GptOssForCausalLM", "GptOssModel", "gpt_oss"),
        "gguf": ("gpt-oss",),
    },
    "aethermind-gpt2": {
        "architecture": (
            "BloomForCausalLM",
            "BloomModel",
            "GPT2LMHeadModel",
            "GPT2Model",
            "GPTNeoXForCausalLM",
            "GPTNeoXModel",
            "MptForCausalLM",
            "MptModel",
            "bloom",
            "gpt2",
            "gpt_neox",
            "mpt",
        ),
        "gguf": ("bloom", "gpt2", "gptneox", "mpt"),
    },
    "aethermind-llama": {
        "architecture": (
            "Cohere2ForCausalLM",
            "Cohere2Model",
            "CohereForCausalLM",
            "CohereModel",
            "Ernie4_5ForCausalLM",
            "Ernie4_5Model",
            "GraniteForCausalLM",
            "GraniteModel",
            "LlamaForCausalLM",
            "LlamaModel",
            "MistralForCausalLM",
            "MistralModel",
            "MixtralForCausalLM",
            "MixtralModel",
            "Olmo2ForCausalLM",
            "Olmo2Model",
            "Olmo3ForCausalLM",
            "Olmo3Model",
            "OlmoeForCausalLM",
            "OlmoeModel",
            "SmolLM3ForCausalLM",
            "SmolLM3Model",
            "StableLmForCausalLM",
            "StableLmModel",
            "Starcoder2ForCausalLM",
            "Starcoder2Model",
            "cohere",
            "cohere2",
            "ernie4_5",
            "granite",
            "llama",
            "mistral",
            "mixtral",
            "olmo2",
            "olmo3",
            "olmoe",
            "smollm3",
            "stablelm",
            "starcoder2",
        ),
        "gguf": (
            "cohere2",
            "command-r",
            "ernie4_5",
            "granite",
            "llama",
            "olmo2",
            "olmoe",
            "smollm3",
            "stablelm",
            "starcoder2",
        ),
    },
    "aethermind-mamba": {
        "architecture": (
            "FalconH1ForCausalLM",
            "FalconH1Model",
            "Lfm2ForCausalLM",
            "Lfm2Model",
            "Mamba2ForCausalLM",
            "Mamba2Model",
            "falcon_h1",
            "lfm2",
            "mamba2",
        ),
        "gguf": ("falcon-h1", "lfm2", "mamba2"),
    },
    "aethermind-phi": {
        "architecture": ("Phi3ForCausalLM", "Phi3Model", "PhiForCausalLM", "PhiModel", "phi", "phi3"),
        "gguf": ("phi2", "phi3"),
    },
    "aethermind-qwen2": {
        "architecture": (
            "Qwen2ForCausalLM",
            "Qwen2Model",
            "Qwen2MoeForCausalLM",
            "Qwen2MoeModel",
            "Qwen3ForCausalLM",
            "Qwen3Model",
            "Qwen3MoeForCausalLM",
            "Qwen3MoeModel",
            "Qwen3NextForCausalLM",
            "Qwen3NextModel",
            "Qwen3_5ForCausalLM",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForCausalLM",
            "Qwen3_5MoeForConditionalGeneration",
            "Qwen3_5MoeTextModel",
            "Qwen3_5TextModel",
            "qwen2",
            "qwen2_moe",
            "qwen3",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_5_moe_text",
            "qwen3_5_text",
            "qwen3_moe",
            "qwen3_next",
        ),
        "gguf": ("qwen2", "qwen2moe", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next"),
        "model": ("demo",),
    },
    "aethermind-sim": {"device": ("sim",)},
}
"""The names that each package provides, by kind, sorted. A plugin's name is its package's without `aethermind-`."""


def provider_of(kind: Kind, name: str) -> str | None:
    """Find the first-party package that provides a name, or None."""
    return next((package for package, names in FIRST_PARTY.items() if name in names.get(kind, ())), None)


def install_advice(kind: Kind, name: str, *, otherwise: str) -> str:
    """Return the end of an error about a missing name: the command that installs the package which provides it.

    If that package is installed, it says why the package was not loaded. `otherwise` is the advice for a name that no
    first-party package provides.
    """
    package = provider_of(kind, name)
    if package is None:
        return f"No package that provides it is known. {otherwise}"
    if not _is_installed(package):
        return f"{package} provides it; install it with `{pip_install_command(package)}`."
    allowed = env.plugin_allow_list()
    plugin = package.removeprefix("aethermind-")
    if allowed is not None and plugin not in allowed:
        return f"{package} provides it and is installed, but AETHERMIND_PLUGINS does not name {plugin}; add it."
    return f"{package} provides it and is installed, but was not loaded; `aethermind plugins list` says why."


def pip_install_command(requirement: str) -> str:
    """Return the command that installs a first-party package, such as `aethermind[serve]`, quoted for a shell.

    If the core was installed from a clone, the package comes from that clone, since an index may not have it.
    """
    name, bracket, extras = requirement.partition("[")
    clone = _source_tree()
    folder = None if clone is None else clone if name == "aethermind" else clone / name
    if folder is not None and (folder / "pyproject.toml").is_file():
        requirement = f"{folder}{bracket}{extras}"
    return f"pip install {shlex.quote(requirement)}"


def _source_tree() -> Path | None:
    """Return the source tree that the core was installed from (PEP 610), or None if there is none any more."""
    import json
    from urllib.parse import unquote, urlsplit

    try:
        text = distribution("aethermind-core").read_text("direct_url.json")
        url = urlsplit(str(json.loads(text)["url"])) if text else None
    except (PackageNotFoundError, KeyError, TypeError, ValueError):
        return None
    if url is None or url.scheme != "file":
        return None
    core = Path(unquote(url.path))
    return core.parent if (core / "pyproject.toml").is_file() else None


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True

"""The packages that are released with the core: what each provides, and the command that installs it.

An installation may lack any of them. A message about a missing architecture or device can then name the package that
provides it, or say that no package is known to. Tests compare this table with what the packages register.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from aethermind import env

__all__ = ["FIRST_PARTY", "Kind", "how_to_get", "pip_install", "provider_of"]

Kind = Literal["architecture", "device", "gguf", "model"]
"""What a package may provide: a name in config.json, a device, a `general.architecture`, a model by its name."""

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
    "aethermind-gpt2": {"architecture": ("GPT2LMHeadModel", "GPT2Model", "gpt2")},
    "aethermind-llama": {
        "architecture": (
            "LlamaForCausalLM",
            "LlamaModel",
            "MistralForCausalLM",
            "MistralModel",
            "llama",
            "mistral",
        ),
        "gguf": ("llama",),
    },
    "aethermind-qwen2": {
        "architecture": (
            "Qwen2ForCausalLM",
            "Qwen2Model",
            "Qwen3ForCausalLM",
            "Qwen3Model",
            "qwen2",
            "qwen3",
        ),
        "gguf": ("qwen2", "qwen3"),
        "model": ("demo",),
    },
    "aethermind-sim": {"device": ("sim",)},
}
"""Names by kind, sorted, of each package. The plugin of a package has its name without `aethermind-`."""


def provider_of(kind: Kind, name: str) -> str | None:
    """The first-party package that provides a name, or None."""
    return next((package for package, names in FIRST_PARTY.items() if name in names.get(kind, ())), None)


def how_to_get(kind: Kind, name: str, *, otherwise: str) -> str:
    """The command that installs the package with this name, or what keeps an installed one from being used.

    `otherwise` is the sentence with the way out where no package is known.
    """
    package = provider_of(kind, name)
    if package is None:
        return f"No package that provides it is known. {otherwise}"
    if not _is_installed(package):
        return f"{package} provides it; install it with `{pip_install(package)}`."
    allowed = env.plugin_allow_list()
    plugin = package.removeprefix("aethermind-")
    if allowed is not None and plugin not in allowed:
        return f"{package} provides it and is installed, but AETHERMIND_PLUGINS does not name {plugin}; add it."
    return f"{package} provides it and is installed, but was not loaded; `aethermind plugins list` says why."


def pip_install(requirement: str) -> str:
    """The command that installs one of our packages, such as `aethermind[serve]`, with quotes where a shell needs them.

    An installation from a clone gets it from that clone: an index may have no such package.
    """
    name, bracket, extras = requirement.partition("[")
    clone = _clone()
    folder = None if clone is None else clone if name == "aethermind" else clone / name
    if folder is not None and (folder / "pyproject.toml").is_file():
        requirement = f"{folder}{bracket}{extras}"
    return f"pip install {shlex.quote(requirement)}"


def _clone() -> Path | None:
    """The source tree that the core was installed from (PEP 610), if it is one and is still there."""
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

"""Names of models on the Hugging Face Hub, and the files of a repository that a model needs.

A name is `org/name`, with `@revision` for a branch, tag or commit, and `:QUANTIZATION` for a GGUF file of that
quantisation, such as `hf.co/org/name:Q4_K_M`, as in llama.cpp and Ollama.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aethermind.errors import ConfigError

__all__ = ["HubName", "INDEX", "RepoKind", "Selection", "quantization_of", "select_files"]

RepoKind = Literal["model", "tokenizer", "adapter"]
"""What is read from a repository: a model, its tokenizer alone, or a LoRA adapter."""

INDEX = "model.safetensors.index.json"
"""The file that lists the shards of a model in safetensors."""

_SEGMENT = r"[A-Za-z0-9](?:(?!--|\.\.)[\w.-]){0,95}"
_NAME = re.compile(
    rf"(?:(?:https://)?(?:hf\.co|huggingface\.co)/|hf://)?(?P<repo>{_SEGMENT}/{_SEGMENT})"
    r"(?:@(?P<revision>[A-Za-z0-9](?:(?!\.\.)[\w./-])*))?(?::(?P<quantization>[A-Za-z0-9][\w.-]*))?",
    re.ASCII,
)
_FILE_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".json", ".toml", ".yaml")

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_QUANTIZATION = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_0|MXFP4\w*|NVFP4|BF16|F16|F32))$", re.IGNORECASE)
_DEFAULT_QUANTIZATIONS = ("Q4_K_M", "Q8_0")
"""The quantisations that are chosen for a name without one: the first that exists, as in llama.cpp."""

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")
_TEXTS = ("merges.txt", "vocab.txt")
_TEXT_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken")
_FOLDERS = re.compile(r"additional_chat_templates/[^/]+\.jinja|\d+_[A-Z][A-Za-z]*/config\.json")
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_NOT_MODEL_WEIGHTS = ("adapter_model.safetensors", "consolidated.safetensors")
"""Weight files that are not the model: an adapter, and a copy of the model with other tensor names."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A model's name on the Hub. `revision` is None for the default branch, `quantization` if the name has none."""

    repo: str
    revision: str | None = None
    quantization: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubName | None:
        """Parse a name; None for a text of another form, such as a path or the name of a file."""
        match = _NAME.fullmatch(text)
        if match is None or match["repo"].lower().endswith(_FILE_SUFFIXES):
            return None
        return cls(match["repo"], match["revision"], match["quantization"])

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repo}{revision}{f':{self.quantization}' if self.quantization else ''}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The files that are needed, by their paths in the repository.

    Attributes:
        texts: all files but the weights: configuration, tokenizer and templates.
        weights: tensors; of a tokenizer only a GGUF file, if nothing else holds it.
        gguf: the first part of the GGUF model; None for a directory.
        is_complete: whether these files are a complete model, tokenizer or adapter.
    """

    texts: tuple[str, ...]
    weights: tuple[str, ...]
    gguf: str | None
    is_complete: bool

    @property
    def files(self) -> tuple[str, ...]:
        """All files, the weights last. They are downloaded in this order, so with the weights a model is complete."""
        return self.texts + self.weights


def select_files(
    name: HubName, paths: Collection[str], kind: RepoKind = "model", shards: Collection[str] = ()
) -> Selection:
    """Choose the files that are needed, out of the paths of a repository, or of those that are in the cache.

    The weights of a model are the safetensors files, else one GGUF model, else the PyTorch files; with a quantisation
    in the name, the GGUF model. `shards` are the
    files that `INDEX` lists. ConfigError if the quantisation does not exist, or if several GGUF models are possible.
    """
    if kind == "adapter":
        files = tuple(path for path in _ADAPTER if path in paths)
        return Selection(files[:1], files[1:], None, len(files) == len(_ADAPTER))
    top = [path for path in paths if "/" not in path]
    texts = tuple(sorted(path for path in paths if _is_text(path)))
    has_tokenizer = any(path in _TOKENIZERS or path.endswith(".tiktoken") for path in texts)
    if kind == "tokenizer" and has_tokenizer and name.quantization is None:
        return Selection(texts, (), None, is_complete=True)
    if name.quantization is None and (weights := _safetensors(top, shards)):
        is_complete = set(weights) <= set(paths) and "config.json" in paths and has_tokenizer
        texts += (INDEX,) * (INDEX in paths and len(weights) > 1)
        return Selection(texts, weights, None, is_complete)
    models = _gguf_models(paths)
    if models:
        parts = models[_choose_gguf(name, models)]
        part = _PART.search(parts[0])
        return Selection((), parts, parts[0], part is None or len(parts) == int(part[2]))
    if name.quantization is not None:
        raise ConfigError(f"{name.repo} has no .gguf file; name it without :{name.quantization}.")
    weights = _torch_files(top)
    return Selection(texts, weights, None, bool(weights) and "config.json" in paths and has_tokenizer)


def quantization_of(path: str) -> str | None:
    """Return the quantisation in the name of a GGUF file, as it is written there; None if there is none."""
    stem = _PART.sub("", path).removesuffix(".gguf")
    match = _QUANTIZATION.search(stem)
    return None if match is None else match[1]


def _is_text(path: str) -> bool:
    if "/" in path:
        return bool(_FOLDERS.fullmatch(path))
    return path in _TEXTS or (path.endswith(_TEXT_SUFFIXES) and not path.endswith(".index.json"))


def _safetensors(top: Sequence[str], shards: Collection[str]) -> tuple[str, ...]:
    if "model.safetensors" in top:
        return ("model.safetensors",)
    if shards:
        return tuple(sorted(shards))
    others = [path for path in top if path.endswith(".safetensors") and path not in _NOT_MODEL_WEIGHTS]
    return tuple(others) if len(others) == 1 else ()


def _torch_files(top: Sequence[str]) -> tuple[str, ...]:
    if "pytorch_model.bin" in top:
        return ("pytorch_model.bin",)
    shards = sorted(path for path in top if re.fullmatch(r"pytorch_model-\d{5}-of-\d{5}\.bin", path))
    return ("pytorch_model.bin.index.json", *shards) if shards else ()


def _gguf_models(paths: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the files of each GGUF model, in order, by the model's path without part number and suffix."""
    models: dict[str, tuple[str, ...]] = {}
    for path in sorted(paths):
        file = path.rpartition("/")[2].lower()
        if file.endswith(".gguf") and not file.startswith("mmproj") and "imatrix" not in file:
            stem = _PART.sub("", path).removesuffix(".gguf")
            models[stem] = (*models.get(stem, ()), path)
    return models


def _choose_gguf(name: HubName, models: Mapping[str, Sequence[str]]) -> str:
    """Return the key of the GGUF model with the name's quantisation, or a default one; ConfigError if there is none."""
    quantizations = {stem: (quantization_of(stem) or stem.rpartition("/")[2]).upper() for stem in models}
    candidates = _DEFAULT_QUANTIZATIONS if name.quantization is None else (name.quantization.upper(),)
    for candidate in candidates:
        if stems := [stem for stem, quantization in quantizations.items() if quantization == candidate]:
            return min(stems, key=len)
    if name.quantization is None and len(models) == 1:
        return next(iter(models))
    known = set(quantizations.values())
    example = next((default for default in _DEFAULT_QUANTIZATIONS if default in known), min(known))
    found = "several .gguf files" if name.quantization is None else f"no .gguf file of {name.quantization}"
    listed = ", ".join(sorted(known))
    raise ConfigError(f"{name.repo} has {found}: name one of {listed}, as in hf.co/{name.repo}:{example}.")

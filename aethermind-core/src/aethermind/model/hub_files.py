"""Names of models on the Hugging Face Hub, and which files of a repository a model needs.

A name is `org/name`, with `@revision` for a branch, tag or commit, and `:QUANTIZATION` for a GGUF file by its
quantisation, such as `hf.co/org/name:Q4_K_M`, which is llama.cpp's and Ollama's form.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aethermind.errors import ConfigError

__all__ = ["HubName", "INDEX", "RepoKind", "Selection", "quantization_of", "select_files"]

RepoKind = Literal["model", "tokenizer", "adapter"]
"""What is needed of a repository: a whole model, its tokenizer alone, or a LoRA adapter."""

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
_PREFERRED = ("Q4_K_M", "Q8_0")
"""The quantisations that a name without one stands for, in llama.cpp's order."""

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")
_TEXTS = ("merges.txt", "vocab.txt")
_TEXT_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken")
_FOLDERS = re.compile(r"additional_chat_templates/[^/]+\.jinja|\d+_[A-Z][A-Za-z]*/config\.json")
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_NO_MODEL = ("adapter_model.safetensors", "consolidated.safetensors")
"""Files of weights that are not the model: an adapter, and a copy of the model with other tensor names."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A model's name on the Hub. `revision` is None for the default branch, `quantization` for no choice of a GGUF."""

    repo: str
    revision: str | None = None
    quantization: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubName | None:
        """Read a name; None for a text of another form, such as a path or the name of a file."""
        found = _NAME.fullmatch(text)
        if found is None or found["repo"].lower().endswith(_FILE_SUFFIXES):
            return None
        return cls(found["repo"], found["revision"], found["quantization"])

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repo}{revision}{f':{self.quantization}' if self.quantization else ''}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The files that are needed, by their paths in the repository.

    Attributes:
        texts: configuration, tokenizer and templates.
        weights: tensors; empty for a tokenizer.
        gguf: the first part of the GGUF model; None for a directory.
        is_complete: whether these files are a whole model, tokenizer or adapter.
    """

    texts: tuple[str, ...]
    weights: tuple[str, ...]
    gguf: str | None
    is_complete: bool

    @property
    def files(self) -> tuple[str, ...]:
        """All files, the weights last: where they are complete, the others are."""
        return self.texts + self.weights


def select_files(
    name: HubName, paths: Collection[str], kind: RepoKind = "model", shards: Collection[str] = ()
) -> Selection:
    """Choose the files of a repository, or of a part of it on disk.

    A model is its safetensors, else a GGUF file with its parts, else its PyTorch files; never two of them. `shards` are
    the files that `INDEX` lists. ConfigError if the quantisation does not exist, or if several GGUF files are possible.
    """
    if kind == "adapter":
        found = tuple(path for path in _ADAPTER if path in paths)
        return Selection(found[:1], found[1:], None, len(found) == len(_ADAPTER))
    top = [path for path in paths if "/" not in path]
    texts = tuple(sorted(path for path in paths if _is_text(path)))
    has_tokenizer = any(path in _TOKENIZERS or path.endswith(".tiktoken") for path in texts)
    if kind == "tokenizer" and has_tokenizer and name.quantization is None:
        return Selection(texts, (), None, is_complete=True)
    if name.quantization is None and (weights := _safetensors(top, shards)):
        is_whole = set(weights) <= set(paths) and "config.json" in paths
        texts += (INDEX,) * (INDEX in paths and len(weights) > 1)
        return Selection(texts, weights, None, is_whole and has_tokenizer)
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
    """The quantisation in the name of a GGUF file, as it is written there; None if there is none."""
    stem = _PART.sub("", path).removesuffix(".gguf")
    found = _QUANTIZATION.search(stem)
    return None if found is None else found[1]


def _is_text(path: str) -> bool:
    if "/" in path:
        return bool(_FOLDERS.fullmatch(path))
    return path in _TEXTS or (path.endswith(_TEXT_SUFFIXES) and not path.endswith(".index.json"))


def _safetensors(top: Sequence[str], shards: Collection[str]) -> tuple[str, ...]:
    if "model.safetensors" in top:
        return ("model.safetensors",)
    if shards:
        return tuple(sorted(shards))
    lone = [path for path in top if path.endswith(".safetensors") and path not in _NO_MODEL]
    return tuple(lone) if len(lone) == 1 else ()


def _torch_files(top: Sequence[str]) -> tuple[str, ...]:
    if "pytorch_model.bin" in top:
        return ("pytorch_model.bin",)
    shards = sorted(path for path in top if re.fullmatch(r"pytorch_model-\d{5}-of-\d{5}\.bin", path))
    return ("pytorch_model.bin.index.json", *shards) if shards else ()


def _gguf_models(paths: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """The parts of each GGUF model, in order, by the name without the number of the part."""
    models: dict[str, tuple[str, ...]] = {}
    for path in sorted(paths):
        file = path.rpartition("/")[2].lower()
        if file.endswith(".gguf") and not file.startswith("mmproj") and "imatrix" not in file:
            title = _PART.sub("", path).removesuffix(".gguf")
            models[title] = (*models.get(title, ()), path)
    return models


def _choose_gguf(name: HubName, models: Mapping[str, Sequence[str]]) -> str:
    known = {title: (quantization_of(title) or title.rpartition("/")[2]).upper() for title in models}
    wanted = _PREFERRED if name.quantization is None else (name.quantization.upper(),)
    for quantization in wanted:
        if titles := [title for title, its_own in known.items() if its_own == quantization]:
            return min(titles, key=len)
    if name.quantization is None and len(models) == 1:
        return next(iter(models))
    listed = ", ".join(sorted(set(known.values())))
    example = next((preferred for preferred in _PREFERRED if preferred in known.values()), min(known.values()))
    found = "several .gguf files" if name.quantization is None else f"no .gguf file of {name.quantization}"
    raise ConfigError(f"{name.repo} has {found}: name one of {listed}, as in hf.co/{name.repo}:{example}.")

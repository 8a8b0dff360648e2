"""Where a model comes from: what is asked of it, whether a directory or one file holds them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aethermind.errors import TokenizerError
from aethermind.model.hf_config import read_hf_config, read_optional_json, require_directory
from aethermind.model.sentence_modules import read_pooling, read_text_limit

if TYPE_CHECKING:
    from aethermind.checkpoint.packing import Packing
    from aethermind.checkpoint.source import StoredTensors
    from aethermind.model.registry import GgufFamilyRegistry
    from aethermind.ops.weight_format import WeightFormat
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["DirectorySource", "ModelSource", "RetokenizedSource", "open_source"]

_QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json")
"""What AutoGPTQ and older versions of AutoAWQ write beside config.json."""
_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")


class ModelSource(Protocol):
    """A model before anything of it is computed. Each method reads what it returns, and nothing else."""

    @property
    def path(self) -> Path:
        """The directory or file."""
        ...

    def config(self) -> dict[str, Any]:
        """What config.json says, or would say; ConfigError names what is missing or broken."""
        ...

    def generation(self) -> dict[str, Any]:
        """What generation_config.json says, or would say; empty where nothing is said."""
        ...

    def described(self) -> dict[str, dict[str, Any]]:
        """What the files say that people publish with a model, by their names; empty for a file of one's own kind."""
        ...

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; TokenizerError says why there is none, ConfigError that there is no model."""
        ...

    def pooling(self) -> str | None:
        """How vectors of texts are pooled (last, mean, cls), None where nothing is said; ConfigError for a way that is
        not computed.
        """
        ...

    def text_limit(self) -> int | None:
        """To how many tokens texts are cut before vectors of them are computed; None where they are not."""
        ...

    def names(self) -> tuple[str, ...]:
        """What the tensors are called, packed ones by their parts; CheckpointError says why there are none."""
        ...

    def weight_formats(self) -> dict[str, WeightFormat]:
        """The formats of those tensors that are stored quantised, by Hugging Face's names; values are not read."""
        ...

    def weights(self) -> StoredTensors:
        """The tensors, by Hugging Face's names; CheckpointError says what is wrong with them."""
        ...


def open_source(path: Path, families: GgufFamilyRegistry) -> ModelSource:
    """The source at a path: a .gguf file by its name, else a directory in the Hugging Face layout; existing or not.

    A directory without config.json in which one .gguf model lies, as downloads leave it, is that model.
    """
    path = _lone_gguf(path) or path
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        from aethermind.model.gguf_source import GgufSource

        return GgufSource(path, families)
    return DirectorySource(path)


def _lone_gguf(directory: Path) -> Path | None:
    """The only .gguf model in a directory that is no model otherwise, by its first part; None for several."""
    if not directory.is_dir() or (directory / "config.json").exists():
        return None
    files = [path for path in sorted(directory.glob("*.gguf")) if path.is_file() and not path.name.startswith("mmproj")]
    firsts = [path for path in files if (part := _PART.search(path.name)) is None or int(part[1]) == 1]
    return firsts[0] if len(firsts) == 1 else None


@dataclass(frozen=True, slots=True)
class DirectorySource:
    """A model directory in the Hugging Face layout; implements `ModelSource`."""

    path: Path

    def config(self) -> dict[str, Any]:
        return read_hf_config(self.path)

    def generation(self) -> dict[str, Any]:
        return read_optional_json(self.path / "generation_config.json")

    def described(self) -> dict[str, dict[str, Any]]:
        files = ("config.json", "generation_config.json", "tokenizer_config.json")
        found = {name: read_optional_json(self.path / name) for name in files}
        quantization = self._quantization()
        return found | ({"quantization_config": quantization} if isinstance(quantization, dict) else {})

    def tokenizer(self) -> Tokenizer:
        from aethermind.text.tokenizer import Tokenizer

        require_directory(self.path)
        return Tokenizer.from_directory(self.path)

    def pooling(self) -> str | None:
        return read_pooling(self.path)

    def text_limit(self) -> int | None:
        return read_text_limit(self.path)

    def names(self) -> tuple[str, ...]:
        from aethermind.checkpoint.sharded_index import Checkpoint

        return Checkpoint.open(self.path).names

    def weight_formats(self) -> dict[str, WeightFormat]:
        if self._packing() is None:
            return {}
        tensors = self.weights()
        found = {name: tensors.info(name).weight_format for name in tensors.names}
        return {name: format for name, format in found.items() if format is not None}

    def weights(self) -> StoredTensors:
        from aethermind.checkpoint.sharded_index import Checkpoint

        packing, checkpoint = self._packing(), Checkpoint.open(self.path)
        if packing is None:
            return checkpoint
        from aethermind.checkpoint.packed import PackedCheckpoint

        return PackedCheckpoint(checkpoint, packing, str(self.path))

    def _packing(self) -> Packing | None:
        from aethermind.checkpoint.packing import read_packing

        described = self._quantization()
        return None if described is None else read_packing(described, str(self.path))

    def _quantization(self) -> Any:
        """What is said of quantised weights: by config.json, or beside it by AutoGPTQ or older versions of AutoAWQ."""
        described = read_optional_json(self.path / "config.json").get("quantization_config")
        for name in _QUANTIZATION_FILES:
            if described is None:
                described = read_optional_json(self.path / name) or None
        return described


@dataclass(frozen=True, slots=True)
class RetokenizedSource:
    """A model with the tokenizer of another one; implements `ModelSource`."""

    model: ModelSource
    of_tokenizer: ModelSource

    @property
    def path(self) -> Path:
        return self.model.path

    def config(self) -> dict[str, Any]:
        return self.model.config()

    def generation(self) -> dict[str, Any]:
        return self.model.generation()

    def described(self) -> dict[str, dict[str, Any]]:
        own, other = self.model.described(), self.of_tokenizer.described()
        name = "tokenizer_config.json"
        return {**own, name: other[name]} if name in other else own

    def tokenizer(self) -> Tokenizer:
        """TokenizerError for one with more tokens than the model has rows; fewer are usual, as rows are padded."""
        tokenizer = self.of_tokenizer.tokenizer()
        num_rows = self.config().get("vocab_size")
        if isinstance(num_rows, int) and tokenizer.vocab_size > num_rows:
            raise TokenizerError(
                f"The tokenizer at {str(self.of_tokenizer.path)!r} has {tokenizer.vocab_size} tokens and the model "
                f"{num_rows}: they do not belong together. Name the tokenizer that the model was trained with."
            )
        return tokenizer

    def pooling(self) -> str | None:
        return self.model.pooling()

    def text_limit(self) -> int | None:
        return self.model.text_limit()

    def names(self) -> tuple[str, ...]:
        return self.model.names()

    def weight_formats(self) -> dict[str, WeightFormat]:
        return self.model.weight_formats()

    def weights(self) -> StoredTensors:
        return self.model.weights()

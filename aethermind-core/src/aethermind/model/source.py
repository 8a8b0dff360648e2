"""Model sources: the configuration, tokenizer and weights of a model directory or a .gguf file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aethermind.errors import TokenizerError
from aethermind.model.hf_files import (
    read_hf_config,
    read_optional_json,
    read_pooling,
    read_text_limit,
    require_directory,
)

if TYPE_CHECKING:
    from aethermind.checkpoint.sharded_index import Checkpoint
    from aethermind.checkpoint.source import StoredTensors
    from aethermind.model.gguf_family import GgufFamily
    from aethermind.model.hub_arrival import Arrival
    from aethermind.ops.weight_format import WeightFormat
    from aethermind.plugins.registry import Registry
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["DirectorySource", "ModelSource", "RetokenizedSource", "open_source"]

_QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json")
"""Files that AutoGPTQ and older versions of AutoAWQ write next to config.json."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "tekken.json")
_TOKENIZER_BYTES_PER_FILE_BYTE = 18
"""Memory of a tokenizer of the `tokenizers` library per byte of its largest file."""
_MODELOPT_FILE = "hf_quant_config.json"
"""The file that ModelOpt writes next to config.json, with an object `quantization`."""
_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")


class ModelSource(Protocol):
    """A model in files: gives its configuration, tokenizer and weights. Each method reads only what it returns."""

    @property
    def path(self) -> Path:
        """The directory or file."""
        ...

    def config(self) -> dict[str, Any]:
        """Return the contents of config.json, or their equivalent; ConfigError names what is missing or broken."""
        ...

    def generation(self) -> dict[str, Any]:
        """Return the contents of generation_config.json, or their equivalent; empty if there are none."""
        ...

    def json_files(self) -> dict[str, dict[str, Any]]:
        """Return the contents of the JSON files that belong to a model, by file name; empty for a GGUF file."""
        ...

    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer; TokenizerError says why there is none, ConfigError that there is no model."""
        ...

    def tokenizer_bytes(self) -> int:
        """Estimate the memory of the tokenizer in bytes; 0 if it is mapped, or if the size is unknown."""
        ...

    def pooling(self) -> str | None:
        """Return the pooling of embeddings (last, mean, cls), None if unspecified; ConfigError if unsupported."""
        ...

    def text_limit(self) -> int | None:
        """Return the number of tokens to which texts are truncated before they are embedded; None for no limit."""
        ...

    def names(self) -> tuple[str, ...]:
        """Return the names of the stored tensors; CheckpointError says why there are none.

        A quantised matrix that is stored as several tensors has the names of these.
        """
        ...

    def weight_formats(self) -> dict[str, WeightFormat]:
        """Return the formats of quantised tensors, by Hugging Face's names; values are not read."""
        ...

    def weights(self) -> StoredTensors:
        """Return the tensors, by Hugging Face's names; CheckpointError says what is wrong with them."""
        ...


def open_source(place: Path | Arrival, families: Registry[GgufFamily]) -> ModelSource:
    """Make the source of a path, existing or not, or of what arrives from the Hub: a .gguf file by its suffix, else a
    directory in the Hugging Face layout.

    A directory without config.json that contains one .gguf model, as after a download, stands for that model.
    """
    path, arrival = (place, None) if isinstance(place, Path) else (place.path, place)
    path = path if arrival else _only_gguf(path) or path
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        from aethermind.model.gguf_source import GgufSource

        return GgufSource(path, families, arrival)
    return DirectorySource(path, arrival)


def _only_gguf(directory: Path) -> Path | None:
    """Return the first file of the only .gguf model in a directory without config.json; None if there are several."""
    if not directory.is_dir() or (directory / "config.json").exists():
        return None
    files = [path for path in sorted(directory.glob("*.gguf")) if path.is_file() and not path.name.startswith("mmproj")]
    firsts = [path for path in files if (part := _PART.search(path.name)) is None or int(part[1]) == 1]
    return firsts[0] if len(firsts) == 1 else None


@dataclass(frozen=True, slots=True)
class DirectorySource:
    """A model directory in the Hugging Face layout, whose weights may still be downloaded; implements `ModelSource`."""

    path: Path
    arrival: Arrival | None = None

    def config(self) -> dict[str, Any]:
        return read_hf_config(self.path)

    def generation(self) -> dict[str, Any]:
        return read_optional_json(self.path / "generation_config.json")

    def json_files(self) -> dict[str, dict[str, Any]]:
        names = ("config.json", "generation_config.json", "tokenizer_config.json")
        files = {name: read_optional_json(self.path / name) for name in names}
        quantization = self._quantization_config()
        return files | ({"quantization_config": quantization} if isinstance(quantization, dict) else {})

    def tokenizer(self) -> Tokenizer:
        from aethermind.text.tokenizer import Tokenizer

        require_directory(self.path)
        return Tokenizer.from_directory(self.path)

    def tokenizer_bytes(self) -> int:
        """Estimate the memory of the tokenizer from the sizes of its files; 0 if it is mapped."""
        from aethermind.text.tokenizer_files import is_tokenizer_cached

        sizes = [file.stat().st_size for name in _TOKENIZER_FILES if (file := self.path / name).is_file()]
        is_mapped = bool(sizes) and is_tokenizer_cached(self.path)
        return 0 if is_mapped else _TOKENIZER_BYTES_PER_FILE_BYTE * max(sizes, default=0)

    def pooling(self) -> str | None:
        return read_pooling(self.path)

    def text_limit(self) -> int | None:
        return read_text_limit(self.path)

    def names(self) -> tuple[str, ...]:
        return self._checkpoint().names

    def weight_formats(self) -> dict[str, WeightFormat]:
        if self._quantization_config() is None:
            return {}
        tensors = self.weights()
        formats = {name: tensors.info(name).weight_format for name in tensors.names}
        return {name: format for name, format in formats.items() if format is not None}

    def weights(self) -> StoredTensors:
        described, where = self._quantization_config(), str(self.path)
        if described is None:
            return self._checkpoint()
        from aethermind.checkpoint.quantized_checkpoint import open_quantized
        from aethermind.checkpoint.quantized_tensors import quantization_method

        quantization_method(described, where)
        return open_quantized(self._checkpoint(), described, where)

    def _checkpoint(self) -> Checkpoint:
        from aethermind.checkpoint.sharded_index import Checkpoint

        return Checkpoint.open(self.path) if self.arrival is None else self.arrival.checkpoint()

    def _quantization_config(self) -> Any:
        """The quantization_config of config.json, or the file of a tool beside it."""
        config = read_optional_json(self.path / "config.json")
        described = config.get("quantization_config", config.get("compression_config"))
        if described is None:
            described = read_optional_json(self.path / _MODELOPT_FILE).get("quantization")
        for name in _QUANTIZATION_FILES:
            if described is None:
                described = read_optional_json(self.path / name) or None
        return described


@dataclass(frozen=True, slots=True)
class RetokenizedSource:
    """A model with the tokenizer of another source; implements `ModelSource`."""

    model: ModelSource
    tokenizer_source: ModelSource

    @property
    def path(self) -> Path:
        return self.model.path

    def config(self) -> dict[str, Any]:
        return self.model.config()

    def generation(self) -> dict[str, Any]:
        return self.model.generation()

    def json_files(self) -> dict[str, dict[str, Any]]:
        model, tokenizer = self.model.json_files(), self.tokenizer_source.json_files()
        name = "tokenizer_config.json"
        return {**model, name: tokenizer[name]} if name in tokenizer else model

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer; TokenizerError if it has more tokens than the model's embedding table has rows.

        Fewer tokens are usual, since tables are padded.
        """
        tokenizer = self.tokenizer_source.tokenizer()
        num_rows = self.config().get("vocab_size")
        if isinstance(num_rows, int) and tokenizer.vocab_size > num_rows:
            raise TokenizerError(
                f"The tokenizer at {str(self.tokenizer_source.path)!r} has {tokenizer.vocab_size} tokens and the model "
                f"{num_rows}: they do not belong together. Name the tokenizer that the model was trained with."
            )
        return tokenizer

    def tokenizer_bytes(self) -> int:
        return self.tokenizer_source.tokenizer_bytes()

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

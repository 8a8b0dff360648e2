"""Image embeddings: every patch of patch_size × patch_size pixels becomes one position of the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint import TensorSource
from aethermind.errors import InvalidArgumentError
from aethermind.model import EmbeddingSpan, ProcessedPrompt
from aethermind.text import Tokenizer

__all__ = ["PIXELS_PROCESSOR"]

_CHANNELS = 3


class PixelsProcessor:
    """Splits images into patches and projects them with the checkpoint's `pixels.projection`."""

    modalities = frozenset({"image"})

    def __init__(self, raw: Mapping[str, Any], weights: TensorSource) -> None:
        self._image_token_id: int = raw["image_token_id"]
        self._patch_size: int = raw["patch_size"]
        self._weight = np.asarray(weights.array("pixels.projection.weight"), dtype=np.float32)  # [hidden_size, pixels]
        self._bias = np.asarray(weights.array("pixels.projection.bias"), dtype=np.float32)

    def process(self, prompt: str | Sequence[int], data: Mapping[str, Any], tokenizer: Tokenizer) -> ProcessedPrompt:
        """Replace each image token by the embeddings of one image; the token is repeated once per patch."""
        given = data["image"]
        images = list(given) if isinstance(given, list | tuple) else [given]
        token_ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        num_placeholders = list(token_ids).count(self._image_token_id)
        if num_placeholders != len(images):
            raise InvalidArgumentError(
                f"The prompt has {num_placeholders} places for images and {len(images)} were given; "
                f"write token {self._image_token_id} once per image."
            )
        expanded: list[int] = []
        spans: list[EmbeddingSpan] = []
        for token_id in token_ids:
            if token_id != self._image_token_id:
                expanded.append(token_id)
                continue
            values = self._patches(images[len(spans)]) @ self._weight.T + self._bias
            spans.append(EmbeddingSpan(len(expanded), values))
            expanded += [token_id] * len(values)
        return ProcessedPrompt(expanded, tuple(spans))

    def _patches(self, image: Any) -> npt.NDArray[np.float32]:
        """Split an image: [num_patches, patch_size · patch_size · 3], in row-major order."""
        size = self._patch_size
        try:
            pixels = np.asarray(image, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"An image should be an array of numbers: {error}.") from None
        if (
            pixels.ndim != 3
            or pixels.shape[2] != _CHANNELS
            or 0 in pixels.shape
            or pixels.shape[0] % size
            or pixels.shape[1] % size
        ):
            raise InvalidArgumentError(
                f"An image should be an array [height, width, {_CHANNELS}] whose sides are multiples of {size}, "
                f"got the shape {list(pixels.shape)}."
            )
        rows, columns = pixels.shape[0] // size, pixels.shape[1] // size
        tiles = pixels.reshape(rows, size, columns, size, _CHANNELS).swapaxes(1, 2)
        return tiles.reshape(rows * columns, size * size * _CHANNELS)


class PixelsProcessorFactory:
    """Creates the processor of a loaded model."""

    def create(self, raw: Mapping[str, Any], weights: TensorSource) -> PixelsProcessor:
        return PixelsProcessor(raw, weights)


PIXELS_PROCESSOR = PixelsProcessorFactory()

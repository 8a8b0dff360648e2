"""From the files of a model to a plan on a device: its graphs, the formats of its weights, the size of its KV cache."""

__all__: list[str] = []

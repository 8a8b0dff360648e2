"""Compilation of a model for a device: its graphs and plans, the formats of its weights, the size of its KV cache."""

__all__: list[str] = []

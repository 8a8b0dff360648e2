"""Analysis of cross-layer KV sharing on an existing model: the memory it saves, and the quality it costs."""

__all__: list[str] = []

"""From a model's files to a `CompiledModel`: graphs and plans, weight formats, the size of the KV cache, adapters."""

__all__: list[str] = []

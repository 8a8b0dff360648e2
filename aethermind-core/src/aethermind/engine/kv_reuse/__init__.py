"""Layers that share keys and values, tried on a model as it is: what that saves, and what it costs."""

__all__: list[str] = []

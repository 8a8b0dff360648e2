"""The `cpu` backend: native kernels, asynchronous streams and a plan runner, found by its entry point."""

__all__: list[str] = []

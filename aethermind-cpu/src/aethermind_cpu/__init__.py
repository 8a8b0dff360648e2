"""The `cpu` device: native kernels, asynchronous streams and a plan runner. The core finds it by its entry point."""

__all__: list[str] = []

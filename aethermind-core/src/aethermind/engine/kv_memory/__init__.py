"""The bytes behind a KV cache's blocks, and how they move: within a device, to host memory and back, to files."""

__all__: list[str] = []

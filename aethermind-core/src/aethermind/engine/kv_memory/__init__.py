"""The memory of a KV cache's blocks, and copies of blocks: within a device, to host memory and back, to files."""

__all__: list[str] = []

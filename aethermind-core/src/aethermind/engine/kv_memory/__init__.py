"""The memory of the KV cache: copies of blocks within a device, swaps to host memory and back, staging for files."""

__all__: list[str] = []

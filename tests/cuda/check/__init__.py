"""Everything that needs an NVIDIA GPU, in one call of less than eight minutes: `make cuda-check`."""

from __future__ import annotations

__all__: list[str] = []

"""The test files of the conformance kit; they need `aethermind.testing.pytest_plugin`."""

from __future__ import annotations

__all__: list[str] = []

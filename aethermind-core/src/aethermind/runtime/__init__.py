"""The composition root of installed packages: registries, plugins and devices."""

from aethermind.runtime.runtime import OpenDevice, Runtime

__all__ = ["OpenDevice", "Runtime"]

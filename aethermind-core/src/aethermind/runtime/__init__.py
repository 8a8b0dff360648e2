"""Where everything installed comes together: registries, plugins, devices."""

from aethermind.runtime.runtime import OpenDevice, Runtime

__all__ = ["OpenDevice", "Runtime"]

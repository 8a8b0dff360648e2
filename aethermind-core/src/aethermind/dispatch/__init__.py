"""Kernel dispatch: kernels, and the choice of one for every operator of a plan, with the reasons."""

from aethermind.dispatch.dispatcher import Dispatcher, Fallback, Resolution
from aethermind.dispatch.kernel import Kernel, Pack, Signature
from aethermind.dispatch.registry import KernelRegistry

__all__ = ["Dispatcher", "Fallback", "Kernel", "KernelRegistry", "Pack", "Resolution", "Signature"]

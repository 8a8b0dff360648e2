"""Who computes an operator: kernels, and the resolution that chooses among them and explains itself."""

from aethermind.dispatch.dispatcher import Dispatcher, Fallback, Resolution
from aethermind.dispatch.kernel import Kernel, Pack, Signature
from aethermind.dispatch.registry import KernelRegistry

__all__ = ["Dispatcher", "Fallback", "Kernel", "KernelRegistry", "Pack", "Resolution", "Signature"]

"""CUDA kernels on the host: the same `.cu` files, compiled by g++ and run thread by thread under strict rules.

    kernels = compile_kernels("rms_norm.cu")
    kernels.rms_norm_float32(out, x, weight, width, 1e-6, grid=rows, block=256, shared=0)

Pointers take contiguous NumPy arrays (written in place; one array passed twice is the same memory; `None` is null;
`Offset(array, nbytes)` starts it behind a boundary of 256 bytes), tensor maps `TiledMatrix(array, box_rows)`, other
parameters take numbers, structures `bytes`.
A call runs the kernel under two seeds, which decide in which order blocks and threads go on, and wants the same bits
from both; pass `seeds=(0,)` where float atomics make that impossible. `EmulationError` names kernel, block, thread and
line of: an access outside of an array or of shared memory, a misaligned one, a race for shared memory, a barrier or
warp operation that somebody does not reach, an index beyond a declared array, a division by zero, the use of what an
asynchronous copy still writes. Fresh shared memory is NaN. `shared` is the dynamic part, in bytes.
"""

from __future__ import annotations

from tests.cuda.emulator.builder import CompileError
from tests.cuda.emulator.kernels import Kernel, Kernels, Offset, TiledMatrix, compile_kernels
from tests.cuda.emulator.memory import EmulationError

__all__ = ["CompileError", "EmulationError", "Kernel", "Kernels", "Offset", "TiledMatrix", "compile_kernels"]

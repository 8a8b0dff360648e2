#include "isa/neon.h"
#include "kernels/gemm_kernel_table.h"

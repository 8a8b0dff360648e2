#include "isa/avx512.h"
#include "kernels/gemm_kernel_table.h"

#include "isa/avx512bf16.h"
#include "kernels/gemm_kernel_table.h"

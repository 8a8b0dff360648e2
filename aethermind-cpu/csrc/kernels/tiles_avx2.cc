#include "isa/avx2.h"
#include "kernels/gemm_kernel_table.h"

#include "isa/portable.h"
#include "kernels/gemm_kernel_table.h"

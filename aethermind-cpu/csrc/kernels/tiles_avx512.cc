#include "isa/avx512.h"
#include "kernels/gemm_tiles.h"

#include "isa/avx2.h"
#include "kernels/gemm_tiles.h"

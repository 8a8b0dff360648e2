#include "isa/neon.h"
#include "kernels/gemm_tiles.h"

#include "isa/portable.h"
#include "kernels/gemm_tiles.h"

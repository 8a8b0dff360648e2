// The tile kernels of gemm.h, most of what there is to compile of it: once for all operators. Included once by each
// tiles_<unit>.cc.
#pragma once

#include "kernels/gemm.h"

namespace aether::cpu::AETHER_ISA {

template <class E>
constinit const TileKernels<E> TileKernels<E>::kAll;

#ifdef AETHER_HAS_PAIR_DOT
template const TileKernels<PairDotEngine> TileKernels<PairDotEngine>::kAll;
#else
template const TileKernels<FloatEngine> TileKernels<FloatEngine>::kAll;
template const TileKernels<WideningEngine<BFloat16> > TileKernels<WideningEngine<BFloat16> >::kAll;
template const TileKernels<WideningEngine<Float16> > TileKernels<WideningEngine<Float16> >::kAll;
#endif

}  // namespace aether::cpu::AETHER_ISA

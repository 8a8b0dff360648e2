// Instantiates the tile kernels of gemm.h, which take most of its compile time, once for all operators. Included by
// each tiles_<level>.cc.
#pragma once

#include "kernels/gemm.h"

namespace aether::cpu::AETHER_ISA {

template <class Micro>
constinit const TileKernelTable<Micro> TileKernelTable<Micro>::kAll;

#ifdef AETHER_HAS_PAIR_DOT
template const TileKernelTable<Bf16DotMicrokernel> TileKernelTable<Bf16DotMicrokernel>::kAll;
#else
template const TileKernelTable<FmaMicrokernel> TileKernelTable<FmaMicrokernel>::kAll;
template const TileKernelTable<WideningMicrokernel<BFloat16> > TileKernelTable<WideningMicrokernel<BFloat16> >::kAll;
template const TileKernelTable<WideningMicrokernel<Float16> > TileKernelTable<WideningMicrokernel<Float16> >::kAll;
#endif

}  // namespace aether::cpu::AETHER_ISA

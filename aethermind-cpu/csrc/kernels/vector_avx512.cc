#include "isa/avx512.h"
#include "kernels/vector_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAvx512Vector = AETHER_ISA::kVectorEntries;

}  // namespace aether::cpu

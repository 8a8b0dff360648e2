#include "isa/avx2.h"
#include "kernels/vector_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAvx2Vector = AETHER_ISA::kVectorEntries;

}  // namespace aether::cpu

#include "isa/neon.h"
#include "kernels/vector_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kNeonVector = AETHER_ISA::kVectorEntries;

}  // namespace aether::cpu

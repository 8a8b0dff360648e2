#include "isa/portable.h"
#include "kernels/vector_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kPortableVector = AETHER_ISA::kVectorEntries;

}  // namespace aether::cpu

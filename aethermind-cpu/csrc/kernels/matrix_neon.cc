#include "isa/neon.h"
#include "kernels/matrix_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kNeonMatrix = AETHER_ISA::kMatrixEntries;

}  // namespace aether::cpu

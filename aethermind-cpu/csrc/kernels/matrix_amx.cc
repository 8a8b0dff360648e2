#include "isa/amx.h"
#include "kernels/matrix_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAmxMatrix = AETHER_ISA::kMatrixEntries;

}  // namespace aether::cpu

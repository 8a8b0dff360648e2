#include "isa/portable.h"
#include "kernels/matrix_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kPortableMatrix = AETHER_ISA::kMatrixEntries;

}  // namespace aether::cpu

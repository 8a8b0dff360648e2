#include "isa/avx2.h"
#include "kernels/matrix_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAvx2Matrix = AETHER_ISA::kMatrixEntries;

}  // namespace aether::cpu

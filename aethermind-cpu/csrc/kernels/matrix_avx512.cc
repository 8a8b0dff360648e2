#include "isa/avx512.h"
#include "kernels/matrix_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAvx512Matrix = AETHER_ISA::kMatrixEntries;

}  // namespace aether::cpu

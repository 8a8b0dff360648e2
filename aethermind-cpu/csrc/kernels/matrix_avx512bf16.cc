#include "isa/avx512bf16.h"
#include "kernels/matrix_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAvx512Bf16Matrix = AETHER_ISA::kMatrixEntries;

}  // namespace aether::cpu

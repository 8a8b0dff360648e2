#include "isa/avx512.h"
#include "kernels/attention_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAvx512Attention = AETHER_ISA::kAttentionEntries;

}  // namespace aether::cpu

#include "isa/avx512bf16.h"
#include "kernels/attention_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAvx512Bf16Attention = AETHER_ISA::kAttentionEntries;

}  // namespace aether::cpu

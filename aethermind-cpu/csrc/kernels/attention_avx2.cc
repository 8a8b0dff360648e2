#include "isa/avx2.h"
#include "kernels/attention_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAvx2Attention = AETHER_ISA::kAttentionEntries;

}  // namespace aether::cpu

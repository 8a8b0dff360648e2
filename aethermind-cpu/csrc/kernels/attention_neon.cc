#include "isa/neon.h"
#include "kernels/attention_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kNeonAttention = AETHER_ISA::kAttentionEntries;

}  // namespace aether::cpu

#include "isa/portable.h"
#include "kernels/attention_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kPortableAttention = AETHER_ISA::kAttentionEntries;

}  // namespace aether::cpu

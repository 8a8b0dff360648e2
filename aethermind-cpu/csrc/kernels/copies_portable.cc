#include "isa/portable.h"
#include "kernels/copy_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kPortableCopies = AETHER_ISA::kCopyEntries;

}  // namespace aether::cpu

// Counts what the extension takes from the heap, so that "a run allocates nothing" is a test and not a claim.
#ifndef AETHER_CPU_ALLOCATION_COUNT_H
#define AETHER_CPU_ALLOCATION_COUNT_H

#include <cstdint>

namespace aether::cpu {

// Calls of operator new in this extension, plus blocks its Allocator handed out, since it was loaded. Safe from any
// thread.
uint64_t allocation_count() noexcept;

// Adds one for memory that does not come from operator new.
void count_allocation() noexcept;

}  // namespace aether::cpu

#endif  // AETHER_CPU_ALLOCATION_COUNT_H

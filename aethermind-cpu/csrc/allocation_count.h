// Counts heap allocations of the extension, so that tests can assert that a run allocates nothing.
#ifndef AETHER_CPU_ALLOCATION_COUNT_H
#define AETHER_CPU_ALLOCATION_COUNT_H

#include <cstdint>

namespace aether::cpu {

// Calls of operator new in this extension plus blocks of its Allocator, since it was loaded. Safe from any thread.
uint64_t allocation_count() noexcept;

// Adds one, for memory that does not come from operator new.
void count_allocation() noexcept;

}  // namespace aether::cpu

#endif  // AETHER_CPU_ALLOCATION_COUNT_H

// Device memory of the CPU: aligned blocks, large ones on huge pages, with statistics.
#ifndef AETHER_CPU_ALLOCATOR_H
#define AETHER_CPU_ALLOCATOR_H

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace aether::cpu {

inline constexpr size_t kCacheLineBytes = 64;
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// `allocated` is what callers requested and have not released; `reserved` is what the system provides for it.
struct MemoryStats {
  size_t allocated_bytes = 0;
  size_t reserved_bytes = 0;
  size_t peak_bytes = 0;
  uint64_t num_allocations = 0;
};

// Blocks below 2 MiB come from the heap, aligned to a cache line; larger ones from the system, aligned to 2 MiB and
// marked for huge pages. Pages are not touched, so that a caller can place them by first touch (NUMA). Safe from any
// thread.
class Allocator {
 public:
  // A block of `nbytes` (0 is allowed), or nullptr when out of memory. The caller owns it until `release`.
  void* allocate(size_t nbytes) noexcept;

  // Frees a block; `nbytes` is its requested size.
  void release(void* block, size_t nbytes) noexcept;

  MemoryStats stats() const noexcept;

 private:
  mutable std::mutex mutex_;
  MemoryStats stats_;
};

// Touches every page of a block without changing its contents, even if other threads write to it meanwhile.
void touch_pages(void* block, size_t nbytes) noexcept;

// Owns a block, which its destructor frees. `address()` is nullptr only before the first `reserve`.
class Block {
 public:
  Block() = default;
  ~Block();
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;

  // Grows to at least `nbytes`; growing discards the contents. Throws std::bad_alloc.
  void reserve(size_t nbytes);

  void* address() const noexcept { return address_; }
  size_t nbytes() const noexcept { return nbytes_; }

 private:
  void* address_ = nullptr;
  size_t nbytes_ = 0;
};

}  // namespace aether::cpu

#endif  // AETHER_CPU_ALLOCATOR_H

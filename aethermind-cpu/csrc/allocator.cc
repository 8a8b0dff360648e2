#include "allocator.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "allocation_count.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace aether::cpu {
namespace {

// Requests beyond this would overflow when rounded up; no machine has it.
constexpr size_t kMaxBytes = size_t{1} << 60;

size_t round_up(size_t nbytes, size_t unit) { return (nbytes + unit - 1) / unit * unit; }

size_t page_bytes() {
  static const size_t value = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return value;
}

// Large blocks end with small pages: rounding hundreds of blocks up to huge pages would waste half a huge page each.
size_t reserved_bytes(size_t nbytes) {
  return nbytes < kHugePageBytes ? round_up(std::max<size_t>(nbytes, 1), kCacheLineBytes)
                                 : round_up(nbytes, page_bytes());
}

// Maps one huge page more than needed and unmaps the ends, so that the block begins at a huge page.
void* map_huge(size_t nbytes) noexcept {
  void* mapping = mmap(nullptr, nbytes + kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1,
                       /*offset=*/0);
  if (mapping == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(mapping);
  const uintptr_t aligned = round_up(start, kHugePageBytes);
  const size_t before = aligned - start;
  const size_t after = kHugePageBytes - before;
  if (before != 0) munmap(mapping, before);
  if (after != 0) munmap(reinterpret_cast<void*>(aligned + nbytes), after);
  void* block = reinterpret_cast<void*>(aligned);
#if defined(MADV_HUGEPAGE)
  madvise(block, nbytes, MADV_HUGEPAGE);
#endif
  return block;
}

void* allocate_block(size_t nbytes) noexcept {
  if (nbytes > kMaxBytes) return nullptr;
  count_allocation();
  const size_t reserved = reserved_bytes(nbytes);
  return nbytes < kHugePageBytes ? std::aligned_alloc(kCacheLineBytes, reserved) : map_huge(reserved);
}

void free_block(void* block, size_t nbytes) noexcept {
  if (nbytes < kHugePageBytes) {
    std::free(block);
  } else {
    munmap(block, reserved_bytes(nbytes));
  }
}

}  // namespace

void* Allocator::allocate(size_t nbytes) noexcept {
  void* block = allocate_block(nbytes);
  if (block == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  stats_.allocated_bytes += nbytes;
  stats_.reserved_bytes += reserved_bytes(nbytes);
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.allocated_bytes);
  ++stats_.num_allocations;
  return block;
}

void Allocator::release(void* block, size_t nbytes) noexcept {
  free_block(block, nbytes);
  const std::lock_guard lock(mutex_);
  stats_.allocated_bytes -= nbytes;
  stats_.reserved_bytes -= reserved_bytes(nbytes);
}

MemoryStats Allocator::stats() const noexcept {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// An atomic operation that changes nothing, rather than madvise: page faults do not hold the lock that mmap needs.
void touch_pages(void* block, size_t nbytes) noexcept {
  auto* bytes = static_cast<char*>(block);
  for (size_t offset = 0; offset < nbytes; offset += page_bytes())
    __atomic_fetch_or(bytes + offset, 0, __ATOMIC_RELAXED);
}

Block::~Block() {
  if (address_ != nullptr) free_block(address_, nbytes_);
}

Block::Block(Block&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)) {}

Block& Block::operator=(Block&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(nbytes_, other.nbytes_);
  return *this;
}

void Block::reserve(size_t nbytes) {
  if (nbytes <= nbytes_) return;
  void* address = allocate_block(nbytes);
  if (address == nullptr) throw std::bad_alloc();
  if (address_ != nullptr) free_block(address_, nbytes_);
  address_ = address;
  nbytes_ = nbytes;
}

}  // namespace aether::cpu

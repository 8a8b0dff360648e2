// Replaces the global operator new for this library only: exports.map keeps the definitions local. Memory comes from
// malloc, as in the standard library's version, so that either side can free the other's blocks.
#include "allocation_count.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace aether::cpu {
namespace {
std::atomic<uint64_t> count{0};
}  // namespace

uint64_t allocation_count() noexcept { return count.load(std::memory_order_relaxed); }

void count_allocation() noexcept { count.fetch_add(1, std::memory_order_relaxed); }

}  // namespace aether::cpu

namespace {

void* allocate(std::size_t nbytes) noexcept {
  aether::cpu::count_allocation();
  return std::malloc(nbytes == 0 ? 1 : nbytes);
}

void* allocate_aligned(std::size_t nbytes, std::align_val_t alignment) noexcept {
  aether::cpu::count_allocation();
  const auto step = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(step, (nbytes + step - 1) / step * step + (nbytes == 0 ? step : 0));
}

void* or_throw(void* address) {
  if (address == nullptr) throw std::bad_alloc();
  return address;
}

}  // namespace

void* operator new(std::size_t n) { return or_throw(allocate(n)); }
void* operator new[](std::size_t n) { return or_throw(allocate(n)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return allocate(n); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return allocate(n); }
void* operator new(std::size_t n, std::align_val_t a) { return or_throw(allocate_aligned(n, a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return or_throw(allocate_aligned(n, a)); }

void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

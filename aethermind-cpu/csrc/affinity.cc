#include "affinity.h"

#if defined(__linux__)
#include <sched.h>

#include <algorithm>
#endif

namespace aether::cpu {

#if defined(__linux__)

CpuSet::CpuSet(const std::vector<int>& processors) {
  if (processors.empty()) return;
  const size_t nbytes = CPU_ALLOC_SIZE(*std::max_element(processors.begin(), processors.end()) + 1);
  mask_.resize(nbytes / sizeof(mask_[0]));
  for (const int processor : processors) CPU_SET_S(processor, nbytes, reinterpret_cast<cpu_set_t*>(mask_.data()));
}

void CpuSet::pin(pthread_t thread) const noexcept {
  if (mask_.empty()) return;
  pthread_setaffinity_np(thread, mask_.size() * sizeof(mask_[0]), reinterpret_cast<const cpu_set_t*>(mask_.data()));
}

#else

CpuSet::CpuSet(const std::vector<int>&) {}

void CpuSet::pin(pthread_t) const noexcept {}

#endif

}  // namespace aether::cpu

// CPU affinity of threads.
#ifndef AETHER_CPU_AFFINITY_H
#define AETHER_CPU_AFFINITY_H

#include <pthread.h>

#include <vector>

namespace aether::cpu {

// A set of processors, by the operating system's numbers; the empty set allows all.
class CpuSet {
 public:
  CpuSet() = default;
  explicit CpuSet(const std::vector<int>& processors);

  bool operator==(const CpuSet&) const = default;

  // Pins a thread to the set. If the system refuses, the thread keeps its affinity: results are the same.
  void pin(pthread_t thread) const noexcept;

 private:
  std::vector<unsigned long> mask_;
};

}  // namespace aether::cpu

#endif  // AETHER_CPU_AFFINITY_H

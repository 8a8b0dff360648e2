// On which of the machine's processors a thread may run.
#ifndef AETHER_CPU_AFFINITY_H
#define AETHER_CPU_AFFINITY_H

#include <pthread.h>

#include <vector>

namespace aether::cpu {

// Some of the processors, by the numbers that the system gives them; without any, nobody cares.
class Place {
 public:
  Place() = default;
  explicit Place(const std::vector<int>& processors);

  bool operator==(const Place&) const = default;

  // Keeps a thread there. The system may refuse: then the thread goes on where it was, as right, and slower.
  void keep(pthread_t thread) const noexcept;

 private:
  std::vector<unsigned long> mask_;
};

}  // namespace aether::cpu

#endif  // AETHER_CPU_AFFINITY_H

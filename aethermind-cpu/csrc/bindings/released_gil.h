// Native calls without the GIL, in a process that may end meanwhile.
#ifndef AETHER_CPU_BINDINGS_RELEASED_GIL_H
#define AETHER_CPU_BINDINGS_RELEASED_GIL_H

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <memory>
#include <optional>

namespace aether::cpu {

// Releases and reacquires the GIL, like pybind11::gil_scoped_release, which calls std::terminate where a daemon thread
// returns during interpreter shutdown: before Python 3.14, acquiring the GIL then calls pthread_exit, whose unwinding
// must not leave a destructor and would run destructors of Python references without the GIL. Such a thread blocks here
// until the process ends, as in Python 3.14 (gh-87135).
class ReleasedGil {
 public:
  ReleasedGil() : thread_(PyEval_SaveThread()) { is_released_ = true; }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

  ~ReleasedGil() {
    is_released_ = false;
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {  // abi::__forced_unwind; leaving the handler would end the process
      for (;;) pause();
    }
  }

  // Whether the calling thread has released the GIL.
  static bool is_released() { return is_released_; }

 private:
  static inline thread_local bool is_released_ = false;

  PyThreadState* thread_;
};

// A shared_ptr for objects whose destructor waits for threads: the last reference is dropped by Python, or while the
// GIL is released. (py::release_gil_before_calling_cpp_dtor reacquires the GIL as gil_scoped_release does.)
template <typename T>
std::shared_ptr<T> share_released(T* object) {
  return {object, [](T* last) {
            std::optional<ReleasedGil> released;
            if (!ReleasedGil::is_released()) released.emplace();
            delete last;
          }};
}

}  // namespace aether::cpu

#endif  // AETHER_CPU_BINDINGS_RELEASED_GIL_H

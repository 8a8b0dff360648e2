// Native work without the interpreter's lock, in a process that may end meanwhile.
#ifndef AETHER_CPU_BINDINGS_RELEASED_GIL_H
#define AETHER_CPU_BINDINGS_RELEASED_GIL_H

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <memory>
#include <optional>

namespace aether::cpu {

// Gives the lock up and takes it back, like pybind11::gil_scoped_release, which ends the process with std::terminate
// where a daemon thread comes back while the interpreter is being taken apart: before Python 3.14 taking the lock then
// calls pthread_exit, whose unwinding may not leave a destructor, and would run the destructors of Python references
// without the lock if it did. Such a thread stays here until the process is gone, as Python 3.14 has it (gh-87135).
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

  // Whether the calling thread has released the lock.
  static bool is_released() { return is_released_; }

 private:
  static inline thread_local bool is_released_ = false;

  PyThreadState* thread_;
};

// A holder for what waits for its threads when it goes: the last reference is dropped by Python or while the lock is
// released. (py::release_gil_before_calling_cpp_dtor takes the lock back as gil_scoped_release does.)
template <typename T>
std::shared_ptr<T> held(T* object) {
  return {object, [](T* last) {
            std::optional<ReleasedGil> released;
            if (!ReleasedGil::is_released()) released.emplace();
            delete last;
          }};
}

}  // namespace aether::cpu

#endif  // AETHER_CPU_BINDINGS_RELEASED_GIL_H

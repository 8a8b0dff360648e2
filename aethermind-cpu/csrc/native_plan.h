// An execution plan whose operands have addresses: native kernel calls that a team of threads runs in order.
#ifndef AETHER_CPU_NATIVE_PLAN_H
#define AETHER_CPU_NATIVE_PLAN_H

#include <aethermind/kernel_abi.h>

#include <array>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "parallel.h"

namespace aether::cpu {

inline constexpr int kMaxSymbols = 16;

// Values of the plan's symbols in one run, in the plan's order.
using Symbols = std::array<int64_t, kMaxSymbols>;

// A length: `value` if `symbol` is -1, otherwise the symbol's value plus `value`.
struct Dim {
  int32_t symbol;
  int64_t value;
};

struct Operand {
  uintptr_t address;
  int32_t dtype;
  std::vector<Dim> dims;
};

using Attribute = std::variant<int64_t, double, std::vector<int64_t>>;

// One kernel call in the order of the operator's schema; absent optional inputs are nullopt.
struct Step {
  const am_kernel* kernel;
  std::vector<std::optional<Operand>> inputs;
  std::vector<Operand> outputs;
  std::vector<Attribute> attributes;
};

// Owns everything a run needs except the tensors' memory and the team. Runs of one plan are serialised: the team's lock
// guards the shapes.
class NativePlan {
 public:
  // `max_symbols` holds the largest value that each symbol takes in any run. Throws std::invalid_argument when a step
  // does not fit its kernel.
  NativePlan(const std::vector<int64_t>& max_symbols, const std::vector<Step>& steps);
  NativePlan(const NativePlan&) = delete;
  NativePlan& operator=(const NativePlan&) = delete;

  size_t num_steps() const noexcept { return steps_.size(); }
  size_t num_symbols() const noexcept { return max_symbols_.size(); }

  // Reserves the kernels' scratch in this team. Throws std::invalid_argument if it cannot be allocated.
  void prepare(Team& team);

  // Runs steps [begin, end) on the team, the calling thread being worker 0. Allocates nothing, unless the team's size
  // has changed since `prepare`; then it prepares again. If `timestamps_ns` is not null, it receives the time before
  // every step and after the last one, end - begin + 1 numbers.
  void run(Team& team, const Symbols& symbols, size_t begin, size_t end, int64_t* timestamps_ns = nullptr);

 private:
  struct BoundStep {
    const am_kernel* kernel;
    size_t first_input;
    size_t first_output;
    size_t first_attribute;
  };

  // Axis `axis` of tensor `tensor` is symbol `symbol` plus `offset`.
  struct SymbolicDim {
    uint32_t tensor;
    int32_t axis;
    int32_t symbol;
    int64_t offset;
  };

  // The largest scratch per worker that any kernel requests, and the kernel that requests it.
  struct ScratchRequest {
    size_t nbytes;
    const am_kernel* kernel;
  };

  void add_tensor(const Operand& operand);
  void add_step(const Step& step);
  am_attr to_attr(const Attribute& value);
  void set_shapes(const Symbols& symbols) noexcept;
  void prepare(Team& team, const Team::Lock& held);
  ScratchRequest scratch_request(int num_workers) const;
  void run_steps(Team& team, const am_team& view, size_t begin, size_t end, int64_t* timestamps_ns) const noexcept;

  std::vector<int64_t> max_symbols_;
  std::vector<BoundStep> steps_;
  std::vector<am_tensor> tensors_;
  std::vector<am_attr> attributes_;
  std::vector<std::vector<int64_t>> lists_;  // that attributes point to
  std::vector<SymbolicDim> symbolic_dims_;
  Symbols current_symbols_{};
  int prepared_num_workers_ = 0;
};

}  // namespace aether::cpu

#endif  // AETHER_CPU_NATIVE_PLAN_H

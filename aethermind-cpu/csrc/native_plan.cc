#include "native_plan.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

#include "clock.h"

namespace aether::cpu {
namespace {

void require(bool is_fine, const am_kernel& kernel, const std::string& problem) {
  const char* name = kernel.name == nullptr ? "without a name" : kernel.name;
  if (!is_fine) throw std::invalid_argument(std::string("kernel ") + name + ": " + problem);
}

std::string counts(size_t given, uint32_t expected, const char* what) {
  return std::to_string(given) + " " + what + " given, " + std::to_string(expected) + " expected";
}

void require_fits(const Step& step) {
  const am_kernel& kernel = *step.kernel;
  require(kernel.abi_version == AM_KERNEL_ABI_VERSION, kernel,
          "it speaks kernel ABI " + std::to_string(kernel.abi_version) + ", this runner speaks " +
              std::to_string(AM_KERNEL_ABI_VERSION));
  require(kernel.name != nullptr, kernel, "its name is NULL");
  require(kernel.run != nullptr, kernel, "its run is NULL");
  require(step.inputs.size() == kernel.num_inputs, kernel, counts(step.inputs.size(), kernel.num_inputs, "inputs"));
  require(step.outputs.size() == kernel.num_outputs, kernel,
          counts(step.outputs.size(), kernel.num_outputs, "outputs"));
  require(step.attributes.size() == kernel.num_attrs, kernel,
          counts(step.attributes.size(), kernel.num_attrs, "attributes"));
}

}  // namespace

NativePlan::NativePlan(const std::vector<int64_t>& max_symbols, const std::vector<Step>& steps)
    : max_symbols_(max_symbols) {
  if (max_symbols.size() > kMaxSymbols) {
    throw std::invalid_argument(std::to_string(max_symbols.size()) + " symbols given, at most " +
                                std::to_string(kMaxSymbols) + " are supported");
  }
  steps_.reserve(steps.size());
  for (const Step& step : steps) add_step(step);
  std::copy(max_symbols.begin(), max_symbols.end(), current_symbols_.begin());
  set_shapes(current_symbols_);
}

void NativePlan::add_step(const Step& step) {
  require_fits(step);
  const size_t first_input = tensors_.size();
  for (const auto& input : step.inputs) {
    if (input) {
      add_tensor(*input);
    } else {
      tensors_.push_back(am_tensor{});
    }
  }
  const size_t first_output = tensors_.size();
  for (const Operand& output : step.outputs) add_tensor(output);
  const size_t first_attribute = attributes_.size();
  for (const auto& value : step.attributes) attributes_.push_back(to_attr(value));
  steps_.push_back({step.kernel, first_input, first_output, first_attribute});
}

am_attr NativePlan::to_attr(const Attribute& value) {
  am_attr attr;
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    attr.i = *integer;
  } else if (const auto* number = std::get_if<double>(&value)) {
    attr.f = *number;
  } else {
    const auto& elements = std::get<std::vector<int64_t>>(value);
    auto& list = lists_.emplace_back(1, static_cast<int64_t>(elements.size()));
    list.insert(list.end(), elements.begin(), elements.end());
    attr.list = list.data();
  }
  return attr;
}

void NativePlan::add_tensor(const Operand& operand) {
  if (operand.dims.size() > AM_MAX_DIMS) {
    throw std::invalid_argument("a tensor has " + std::to_string(operand.dims.size()) + " dims, at most " +
                                std::to_string(AM_MAX_DIMS) + " are supported");
  }
  am_tensor tensor{};
  tensor.data = reinterpret_cast<void*>(operand.address);
  tensor.dtype = operand.dtype;
  tensor.ndim = static_cast<int32_t>(operand.dims.size());
  for (int32_t axis = 0; axis < tensor.ndim; ++axis) {
    const Dim& dim = operand.dims[axis];
    if (dim.symbol < 0) {
      tensor.shape[axis] = dim.value;
    } else if (static_cast<size_t>(dim.symbol) < max_symbols_.size()) {
      symbolic_dims_.push_back({static_cast<uint32_t>(tensors_.size()), axis, dim.symbol, dim.value});
    } else {
      throw std::invalid_argument("a dim names symbol " + std::to_string(dim.symbol) + " of " +
                                  std::to_string(max_symbols_.size()));
    }
  }
  tensors_.push_back(tensor);
}

void NativePlan::set_shapes(const Symbols& symbols) noexcept {
  for (const SymbolicDim& dim : symbolic_dims_) tensors_[dim.tensor].shape[dim.axis] = symbols[dim.symbol] + dim.offset;
}

void NativePlan::prepare(Team& team) {
  const Team::Lock held = team.acquire();
  prepare(team, held);
}

void NativePlan::prepare(Team& team, const Team::Lock& held) {
  Symbols greatest{};
  std::copy(max_symbols_.begin(), max_symbols_.end(), greatest.begin());
  set_shapes(greatest);
  current_symbols_ = greatest;
  const ScratchRequest largest = scratch_request(team.num_workers());
  try {
    team.reserve_scratch(held, largest.nbytes);
  } catch (const std::bad_alloc&) {
    require(false, *largest.kernel,
            "it asks for " + std::to_string(largest.nbytes) + " bytes of scratch for each of " +
                std::to_string(team.num_workers()) + " workers, which cannot be allocated");
  }
  prepared_num_workers_ = team.num_workers();
}

NativePlan::ScratchRequest NativePlan::scratch_request(int num_workers) const {
  ScratchRequest largest{};
  for (const BoundStep& step : steps_) {
    if (step.kernel->scratch_bytes == nullptr) continue;
    const size_t nbytes =
        step.kernel->scratch_bytes(tensors_.data() + step.first_input, tensors_.data() + step.first_output,
                                   attributes_.data() + step.first_attribute, num_workers);
    if (nbytes > largest.nbytes) largest = {nbytes, step.kernel};
  }
  return largest;
}

void NativePlan::run(Team& team, const Symbols& symbols, size_t begin, size_t end, int64_t* timestamps_ns) {
  const Team::Lock held = team.acquire();
  if (prepared_num_workers_ != team.num_workers()) prepare(team, held);
  if (symbols != current_symbols_) {
    set_shapes(symbols);
    current_symbols_ = symbols;
  }
  struct Run {
    const NativePlan* plan;
    Team* team;
    size_t begin, end;
    int64_t* timestamps_ns;
  } run{this, &team, begin, end, timestamps_ns};
  team.run(
      held,
      [](void* context, const am_team& view) {
        const Run& run = *static_cast<Run*>(context);
        run.plan->run_steps(*run.team, view, run.begin, run.end, view.worker == 0 ? run.timestamps_ns : nullptr);
      },
      &run);
  if (timestamps_ns != nullptr) timestamps_ns[end - begin] = now_ns();
}

void NativePlan::run_steps(Team& team, const am_team& view, size_t begin, size_t end,
                           int64_t* timestamps_ns) const noexcept {
  for (size_t index = begin; index < end; ++index) {
    if (timestamps_ns != nullptr) timestamps_ns[index - begin] = now_ns();
    const BoundStep& step = steps_[index];
    step.kernel->run(tensors_.data() + step.first_input, tensors_.data() + step.first_output,
                     attributes_.data() + step.first_attribute, &view);
    if (index + 1 < end) team.next_step();
  }
}

}  // namespace aether::cpu

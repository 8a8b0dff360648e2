// Tests of add_low_rank: rows of several adapters and of none in one batch.
#include <utility>

#include "kernel_testing.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

struct Call {
  std::vector<int> ranks;     // of each adapter
  std::vector<int> adapters;  // of each row
  int64_t inner, columns;
};

std::vector<int> repeated(int count, int adapter) { return std::vector<int>(static_cast<size_t>(count), adapter); }

Tensor integers(const std::vector<int>& values) {
  Tensor tensor(AM_INT32, {static_cast<int64_t>(values.size())});
  tensor.fill([&](int64_t i) { return values[static_cast<size_t>(i)]; });
  return tensor;
}

struct Inputs {
  Tensor y, x, down, up, cu_ranks, adapters;

  Inputs(am_dtype dtype, const Call& call) {
    const auto rows = static_cast<int64_t>(call.adapters.size());
    std::vector<int> ends = {0};
    for (int rank : call.ranks) ends.push_back(ends.back() + rank);
    y = random(dtype, {rows, call.columns}, 1);
    x = random(dtype, {rows, call.inner}, 3);
    down = random(dtype, {ends.back(), call.inner}, 5, 0.1);
    up = random(dtype, {ends.back(), call.columns}, 7);
    cu_ranks = integers(ends);
    adapters = integers(call.adapters);
  }
  std::vector<am_tensor> abi() const {
    return {y.abi(), x.abi(), down.abi(), up.abi(), cu_ranks.abi(), adapters.abi()};
  }
};

void check_results(const KernelEntry& entry, const Call& call, const Inputs& in, const Tensor& out) {
  const std::vector<double> x = doubles(in.x), down = doubles(in.down), up = doubles(in.up);
  for (int64_t row = 0; row < in.y.dim(0); ++row) {
    const int adapter = call.adapters[static_cast<size_t>(row)];
    const auto begin = adapter < 0 ? 0 : static_cast<int64_t>(in.cu_ranks.get(adapter));
    const auto end = adapter < 0 ? 0 : static_cast<int64_t>(in.cu_ranks.get(adapter + 1));
    std::vector<double> weights, magnitudes;
    for (int64_t j = begin; j < end; ++j) {
      weights.push_back(0.0);
      magnitudes.push_back(0.0);
      for (int64_t k = 0; k < call.inner; ++k) {
        const double term =
            x[static_cast<size_t>(row * call.inner + k)] * down[static_cast<size_t>(j * call.inner + k)];
        weights.back() += term;
        magnitudes.back() += std::fabs(term);
      }
    }
    for (int64_t c = 0; c < call.columns; ++c) {
      const int64_t i = row * call.columns + c;
      double want = in.y.get(i), magnitude = std::fabs(want);
      for (size_t j = 0; j < weights.size(); ++j) {
        const double value =
            up[(static_cast<size_t>(begin) + j) * static_cast<size_t>(call.columns) + static_cast<size_t>(c)];
        want += weights[j] * value;
        magnitude += magnitudes[j] * std::fabs(value);
      }
      if (begin == end) {
        check(out.get(i) == want, entry, "a row without an adapter");
      } else {
        check_close(out.get(i), want, magnitude, entry.dtype, entry, "add_low_rank");
      }
    }
  }
}

const std::vector<Call> kCalls = {{{3, 8, 1}, {1, 1, -1, 0, 2, 1}, 17, 33},
                                  {{16}, {0}, 896, 130},
                                  {{16}, {0}, 65, 1024},
                                  {{4}, {-1}, 7, 9},
                                  {{2, 0, 5, 16, 9}, {4, 1, 3}, 48, 700},
                                  {{0}, {0, -1}, 3, 5},
                                  {{2}, {}, 8, 8},
                                  {{2}, {0, 0}, 0, 5},
                                  {{64, 16}, repeated(45, 1), 300, 520},
                                  {{5, 7}, repeated(13, 0), 31, 16}};

void test_add_low_rank(const KernelEntry& entry) {
  for (const Call& call : kCalls) {
    const Inputs in(entry.dtype, call);
    const Tensor out(entry.dtype, {in.y.dim(0), call.columns}, 1);
    run_with_teams(entry, in.abi(), {out}, {}, "");
    if (is_compared()) check_results(entry, call, in, out);
  }
}

// The output may alias the input y.
void test_in_place(const KernelEntry& entry) {
  const Call call = {{3, 8}, {0, -1, -1, 1, 1, 1, 0}, 40, 300};
  const Inputs in(entry.dtype, call);
  const Tensor out(entry.dtype, {7, 300}), same(entry.dtype, {7, 300});
  std::memcpy(same.bytes(), in.y.bytes(), in.y.num_bytes());
  run(*entry.kernel, in.abi(), {out.abi()}, {}, 2);
  std::vector<am_tensor> inputs = in.abi();
  inputs[0] = same.abi();
  run(*entry.kernel, inputs, {same.abi()}, {}, 2);
  check(std::memcmp(out.bytes(), same.bytes(), out.num_bytes()) == 0, entry, "in place");
}

// Batch invariance: one row alone and among others.
void test_rows_are_independent(const KernelEntry& entry) {
  Call call = {{16, 5}, repeated(30, 0), 300, 600};
  for (size_t row : {3, 4, 20}) call.adapters[row] = row == 4 ? -1 : 1;
  const Inputs in(entry.dtype, call);
  const Tensor all(entry.dtype, {30, 600}), alone(entry.dtype, {1, 600});
  run(*entry.kernel, in.abi(), {all.abi()}, {}, 2);
  for (int64_t row = 0; row < 30; ++row) {
    std::vector<am_tensor> inputs = in.abi();
    for (const auto& [i, bytes] :
         {std::pair{0, in.y.num_bytes()}, {1, in.x.num_bytes()}, {5, in.adapters.num_bytes()}}) {
      am_tensor& input = inputs[static_cast<size_t>(i)];
      input.data = static_cast<char*>(input.data) + static_cast<size_t>(row) * bytes / 30;
      input.shape[0] = 1;
    }
    run(*entry.kernel, inputs, {alone.abi()}, {}, 2);
    const char* wanted = all.bytes() + static_cast<size_t>(row) * alone.num_bytes();
    check(std::memcmp(wanted, alone.bytes(), alone.num_bytes()) == 0, entry, "a row alone");
  }
}

}  // namespace

int main() {
  for_each_kernel("add_low_rank", test_add_low_rank);
  for_each_kernel("add_low_rank", test_in_place);
  for_each_kernel("add_low_rank", test_rows_are_independent);
  return report();
}

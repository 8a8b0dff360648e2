// The matrix operators over dense weights.
#include "matrix_cases.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

int main() {
  const Storage dense = {[](const KernelEntry& entry, int input, int64_t n, int64_t k, double scale) {
                           const Tensor values = random(entry.dtype, {n, k}, 0, scale);
                           return Weight{values, pack(entry, input, values)};
                         },
                         [](const KernelEntry&, const Tensor& x) { return x; }, "dense"};
  const auto with = [&](void (*test)(const KernelEntry&, const Storage&)) {
    return [&dense, test](const KernelEntry& entry) { test(entry, dense); };
  };
  for_each_kernel("linear", with(test_linear));
  for_each_kernel("linear", with(test_rows_are_independent));
  for_each_kernel("lm_head", with(test_linear));
  for_each_kernel("gate_up_silu", with(test_gate_up_silu));
  for_each_kernel("qkv_rope_cache_write", with(test_qkv));
  return report();
}

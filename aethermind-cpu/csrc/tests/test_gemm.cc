// Tests of the matrix operators over dense weights.
#include "matrix_cases.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

// Batch invariance of large products in several passes, with packed rows and rows in place: a row's result equals its
// result in a skinny product.
static void test_passes_over_rows(const KernelEntry& entry, const Storage& storage) {
  const int64_t few = 40, n = 20;
  for (const auto& [rows, k] : {std::pair<int64_t, int64_t>{290, 4401}, {290, 4096}, {760, 34}}) {
    const Tensor x = random(entry.dtype, {rows, k});
    const Packed packed = storage.weight(entry, 1, n, k, 1.0).packed;
    const Tensor all(entry.dtype, {rows, n}), part(entry.dtype, {few, n});
    run_with_teams(entry, {x.abi(), packed.abi(), Tensor().abi()}, {all}, {}, sizes(rows, n, k));
    for (int64_t first : {int64_t{0}, int64_t{120}, rows - few}) {
      am_tensor some = x.abi();
      some.shape[0] = few;
      some.data = x.bytes() + first * k * static_cast<int64_t>(element_size(entry.dtype));
      run(*entry.kernel, {some, packed.abi(), Tensor().abi()}, {part.abi()}, {}, 1);
      const char* expected = all.bytes() + first * n * static_cast<int64_t>(element_size(entry.dtype));
      check(std::memcmp(part.bytes(), expected, part.num_bytes()) == 0, entry,
            "rows from " + std::to_string(first) + " on differ among " + std::to_string(rows));
    }
  }
}

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
  for_each_kernel("linear", with(test_passes_over_rows));
  for_each_kernel("lm_head", with(test_linear));
  for_each_kernel("gate_up_silu", with(test_gate_up_silu));
  for_each_kernel("qkv_rope_cache_write", with(test_qkv));
  return report();
}

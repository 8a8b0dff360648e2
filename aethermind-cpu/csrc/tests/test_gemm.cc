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

// Every number of rows up to a hundred, at every misalignment: a row has the bits that it has among a hundred.
static void test_every_number_of_rows(const KernelEntry& entry, const Storage& storage) {
  const int64_t most = 100, k = 67, n = 35, element = static_cast<int64_t>(element_size(entry.dtype));
  const Tensor x = random(entry.dtype, {most, k}), all(entry.dtype, {most, n});
  const Packed packed = storage.weight(entry, 1, n, k, 1.0).packed;
  run(*entry.kernel, {x.abi(), packed.abi(), Tensor().abi()}, {all.abi()}, {}, 1);
  for (int64_t rows = 0; rows < most; ++rows) {
    const Tensor some(entry.dtype, {rows, k}, static_cast<int>(rows % 32)), out(entry.dtype, {rows, n});
    std::memcpy(some.bytes(), x.bytes(), static_cast<size_t>(rows * k * element));
    run(*entry.kernel, {some.abi(), packed.abi(), Tensor().abi()}, {out.abi()}, {}, rows % 3 == 0 ? 2 : 1);
    check(std::memcmp(out.bytes(), all.bytes(), out.num_bytes()) == 0, entry,
          std::to_string(rows) + " rows differ from a hundred");
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
  for_each_kernel("linear", with(test_every_number_of_rows));
  for_each_kernel("linear", with(test_passes_over_rows));
  for_each_kernel("lm_head", with(test_linear));
  for_each_kernel("gate_up_silu", with(test_gate_up_silu));
  for_each_kernel("qkv_rope_cache_write", with(test_qkv));
  return report();
}

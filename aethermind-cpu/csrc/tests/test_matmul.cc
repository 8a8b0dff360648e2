// Tests of matmul, and of attention without a cache.
#include <algorithm>

#include "kernel_testing.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

struct Product {
  int64_t matrices, rows, inner, columns;
};

void test_matmul(const KernelEntry& entry) {
  for (const auto& [matrices, rows, inner, columns] : std::vector<Product>{{1, 1, 1, 1},
                                                                           {1, 3, 0, 5},
                                                                           {1, 0, 8, 4},
                                                                           {0, 2, 3, 4},
                                                                           {1, 1, 65, 33},
                                                                           {1, 17, 31, 47},
                                                                           {1, 5, 7, 300},
                                                                           {6, 4, 9, 6},
                                                                           {1, 145, 257, 259},
                                                                           {2, 33, 513, 40}}) {
    const Tensor a = random(entry.dtype, {matrices, rows, inner}, 1),
                 b = random(entry.dtype, {matrices, inner, columns}, 3), out(entry.dtype, {matrices, rows, columns}, 1);
    run_with_teams(entry, {a.abi(), b.abi()}, {out}, {}, "");
    if (!is_compared()) continue;
    const std::vector<double> rows_of = doubles(a), columns_of = doubles(b);
    for (int64_t i = 0; i < out.size(); ++i) {
      const int64_t row = i / columns, matrix = row / rows, column = i % columns;
      double want = 0.0, magnitude = 0.0;
      for (int64_t k = 0; k < inner; ++k) {
        const double term = rows_of[static_cast<size_t>(row * inner + k)] *
                            columns_of[static_cast<size_t>((matrix * inner + k) * columns + column)];
        want += term;
        magnitude += std::fabs(term);
      }
      check_close(out.get(i), want, magnitude, entry.dtype, entry, "matmul");
    }
  }
}

// Batch invariance: one row alone and among others.
void test_rows_are_independent(const KernelEntry& entry) {
  const int64_t rows = 40, inner = 300, columns = 70;
  const Tensor a = random(entry.dtype, {rows, inner}), b = random(entry.dtype, {inner, columns}),
               all(entry.dtype, {rows, columns}), alone(entry.dtype, {1, columns});
  run(*entry.kernel, {a.abi(), b.abi()}, {all.abi()}, {}, 2);
  am_tensor first = a.abi();
  first.shape[0] = 1;
  run(*entry.kernel, {first, b.abi()}, {alone.abi()}, {}, 2);
  check(std::memcmp(all.bytes(), alone.bytes(), alone.num_bytes()) == 0, entry, "a row alone");
}

// Plans size scratch for the largest shapes and run smaller ones, so scratch must not shrink with size.
void test_scratch(const KernelEntry& entry) {
  const auto bytes = [&](int64_t rows, int64_t inner, int64_t columns) {
    const am_tensor inputs[] = {Tensor(entry.dtype, {rows, inner}).abi(), Tensor(entry.dtype, {inner, columns}).abi()};
    return entry.kernel->scratch_bytes(inputs, nullptr, nullptr, 2);
  };
  for (int64_t rows = 0; rows < 300; ++rows) {
    check(bytes(rows, 300, 40) <= bytes(rows + 1, 300, 40), entry, "scratch of rows");
    check(bytes(20, rows, 40) <= bytes(20, rows + 1, 40), entry, "scratch of K");
    check(bytes(20, 30, rows) <= bytes(20, 30, rows + 1), entry, "scratch of columns");
  }
}

struct Heads {
  int64_t batches, queries, keys, heads, kv_heads, head_dim;
};

void test_attention_of(const KernelEntry& entry, const Heads& size, bool is_causal) {
  const auto& [batches, queries, keys, heads, kv_heads, head_dim] = size;
  const Tensor q = random(entry.dtype, {batches, queries, heads, head_dim}, 1),
               k = random(entry.dtype, {batches, keys, kv_heads, head_dim}, 3),
               v = random(entry.dtype, {batches, keys, kv_heads, head_dim}, 5),
               out(entry.dtype, {batches, queries, heads, head_dim}, 1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  run_with_teams(entry, {q.abi(), k.abi(), v.abi()}, {out}, {attr(scale), attr(is_causal ? 1 : 0)}, "");
  if (!is_compared()) return;
  for (int64_t row = 0; row < batches * queries * heads; ++row) {
    const int64_t batch = row / (queries * heads), query = row / heads % queries, head = row % heads;
    const int64_t kv_head = head / (heads / kv_heads);
    const int64_t end = is_causal ? std::max<int64_t>(0, keys - queries + query + 1) : keys;
    const auto at = [&](int64_t key) { return ((batch * keys + key) * kv_heads + kv_head) * head_dim; };
    std::vector<double> weights;
    double greatest = -INFINITY, total = 0.0;
    for (int64_t key = 0; key < end; ++key) {
      double score = 0.0;
      for (int64_t i = 0; i < head_dim; ++i) score += q.get(row * head_dim + i) * k.get(at(key) + i);
      weights.push_back(score * scale);
      greatest = std::max(greatest, score * scale);
    }
    for (double& weight : weights) total += weight = std::exp(weight - greatest);
    for (int64_t i = 0; i < head_dim; ++i) {
      double want = 0.0, magnitude = 0.0;
      for (int64_t key = 0; key < end; ++key) {
        const double term = weights[static_cast<size_t>(key)] / total * v.get(at(key) + i);
        want += term;
        magnitude += std::fabs(term);
      }
      check_close(out.get(row * head_dim + i), want, magnitude * (1.0 + 1e5 * weight_rounding(entry)), entry.dtype,
                  entry, "attention");
    }
  }
}

void test_attention(const KernelEntry& entry) {
  for (const Heads& size : std::vector<Heads>{{1, 5, 5, 4, 2, 64},
                                              {1, 1, 33, 7, 1, 64},
                                              {2, 17, 17, 3, 3, 10},
                                              {1, 0, 4, 2, 1, 8},
                                              {0, 2, 2, 2, 2, 8},
                                              {3, 7, 150, 14, 2, 16},
                                              {1, 100, 130, 4, 2, 80},
                                              {1, 70, 3, 2, 1, 8},
                                              {1, 2, 0, 2, 1, 8}}) {
    for (bool is_causal : {true, false}) test_attention_of(entry, size, is_causal);
  }
}

}  // namespace

int main() {
  for_each_kernel("matmul", test_matmul);
  for_each_kernel("matmul", test_rows_are_independent);
  for_each_kernel("matmul", test_scratch);
  for_each_kernel("attention", test_attention);
  return report();
}

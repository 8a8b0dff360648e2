// paged_attention against a softmax in double, over ragged batches, block sizes, group sizes, head dims and windows.
#include <algorithm>
#include <numeric>

#include "kernel_testing.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

struct Sequence {
  int64_t num_queries, num_keys;
};

struct Case {
  int64_t num_heads, num_kv_heads, head_dim, block_size, window;
  std::vector<Sequence> sequences;
};

const std::vector<Case> kCases = {
    {7, 1, 64, 16, 0, {{1, 1}, {1, 63}, {1, 64}, {1, 65}, {1, 300}}},
    {4, 4, 8, 4, 0, {{1, 10}, {9, 9}, {0, 0}, {3, 70}}},
    {6, 2, 80, 16, 0, {{130, 130}, {5, 200}}},
    {3, 1, 128, 32, 0, {{70, 70}, {1, 129}}},
    {4, 2, 24, 5, 0, {{33, 150}}},
    {4, 2, 64, 16, 20, {{1, 200}, {100, 130}, {5, 7}}},
    {2, 1, 16, 8, 1, {{12, 70}}},
    {14, 2, 64, 16, 70, {{40, 260}}},
    {70, 1, 16, 16, 0, {{3, 40}}},
};

void test(const KernelEntry& entry) {
  for (const Case& c : kCases) {
    const auto num_sequences = static_cast<int64_t>(c.sequences.size());
    std::vector<double> cu = {0.0}, lengths;
    int64_t width = 1;
    for (const auto& [queries, keys] : c.sequences) {
      cu.push_back(cu.back() + static_cast<double>(queries));
      lengths.push_back(static_cast<double>(keys));
      width = std::max(width, (keys + c.block_size - 1) / c.block_size);
    }
    const int64_t num_blocks = num_sequences * width + 2;
    std::vector<int64_t> order(static_cast<size_t>(num_blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), generator());
    const Tensor tables(AM_INT32, {num_sequences, width});
    tables.fill([&](int64_t i) { return order[static_cast<size_t>(i)]; });
    const Tensor cu_seqlens = of(AM_INT32, cu), seqlens = of(AM_INT32, lengths);
    const auto num_tokens = static_cast<int64_t>(cu.back());
    const std::vector<int64_t> cache_shape = {num_blocks, c.num_kv_heads, c.block_size, c.head_dim};
    const Tensor q = random(entry.dtype, {num_tokens + 2, c.num_heads, c.head_dim}, 3);
    // Whatever no query may see is NaN.
    const Tensor k_cache(entry.dtype, cache_shape), v_cache(entry.dtype, cache_shape);
    k_cache.fill([](int64_t) { return NAN; });
    v_cache.fill([](int64_t) { return NAN; });
    const auto at = [&](int64_t s, int64_t head, int64_t key) {
      const auto block = static_cast<int64_t>(tables.get(s * width + key / c.block_size));
      return ((block * c.num_kv_heads + head) * c.block_size + key % c.block_size) * c.head_dim;
    };
    for (int64_t s = 0; s < num_sequences; ++s) {
      const auto& [queries, keys] = c.sequences[static_cast<size_t>(s)];
      for (int64_t key = c.window > 0 ? std::max<int64_t>(0, keys - queries - c.window + 1) : 0; key < keys; ++key) {
        for (int64_t head = 0; head < c.num_kv_heads; ++head) {
          for (int64_t i = 0; i < c.head_dim; ++i) {
            k_cache.set(at(s, head, key) + i, normal());
            v_cache.set(at(s, head, key) + i, normal());
          }
        }
      }
    }
    const double scale = 2.0 / std::sqrt(static_cast<double>(c.head_dim));
    const Tensor out(entry.dtype, {num_tokens + 2, c.num_heads, c.head_dim}, 1);
    const std::string what =
        "H=" + std::to_string(c.num_heads) + " C=" + std::to_string(c.head_dim) + " window=" + std::to_string(c.window);
    const std::vector<am_tensor> inputs = {q.abi(),          k_cache.abi(), v_cache.abi(),
                                           cu_seqlens.abi(), seqlens.abi(), tables.abi()};
    run_with_teams(entry, inputs, {out}, {attr(scale), attr(static_cast<int>(c.window))}, what);
    for (int64_t s = 0; s < num_sequences; ++s) {
      const auto& [queries, keys] = c.sequences[static_cast<size_t>(s)];
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t position = keys - queries + i;
        const int64_t first = c.window > 0 ? std::max<int64_t>(0, position - c.window + 1) : 0;
        for (int64_t head = 0; head < c.num_heads; ++head) {
          const int64_t row = (static_cast<int64_t>(cu[static_cast<size_t>(s)]) + i) * c.num_heads + head;
          const int64_t kv_head = head / (c.num_heads / c.num_kv_heads);
          std::vector<double> scores;
          double greatest = -INFINITY, score_magnitude = 0.0;
          for (int64_t key = first; key <= position; ++key) {
            double score = 0.0, magnitude = 0.0;
            for (int64_t e = 0; e < c.head_dim; ++e) {
              const double term = scale * q.get(row * c.head_dim + e) * k_cache.get(at(s, kv_head, key) + e);
              score += term;
              magnitude += std::fabs(term);
            }
            scores.push_back(score);
            greatest = std::max(greatest, score);
            score_magnitude = std::max(score_magnitude, magnitude);
          }
          double total = 0.0;
          for (double& score : scores) total += score = std::exp(score - greatest);
          for (int64_t e = 0; e < c.head_dim; ++e) {
            double value = 0.0, magnitude = 0.0;
            for (int64_t key = first; key <= position; ++key) {
              const double term =
                  scores[static_cast<size_t>(key - first)] / total * v_cache.get(at(s, kv_head, key) + e);
              value += term;
              magnitude += std::fabs(term);
            }
            // An error of a score is a relative error of its weight.
            check_close(out.get(row * c.head_dim + e), value, magnitude * (1.0 + 0.1 * score_magnitude), entry.dtype,
                        entry, what);
          }
        }
      }
    }
  }
}

}  // namespace

int main() {
  for_each_kernel("paged_attention", test);
  return report();
}

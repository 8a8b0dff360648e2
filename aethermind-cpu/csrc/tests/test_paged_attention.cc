// Tests of paged_attention against a float64 softmax: ragged batches, block sizes, group sizes, head dims, windows,
// contexts of several key blocks, and quantised caches.
#include <algorithm>
#include <array>
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
    {12, 2, 128, 16, 0, {{1, 1}, {1, 15}, {1, 16}, {1, 17}, {1, 127}, {1, 128}, {1, 129}}},
    {14, 2, 64, 16, 0, {{1, 255}, {1, 256}, {1, 257}, {1, 2048}}},
    {4, 1, 96, 48, 0, {{1, 5000}}},
    {3, 3, 80, 16, 0, {{2, 900}, {1, 40}}},
    {2, 2, 10, 7, 300, {{1, 1500}, {4, 700}}},
};

// A cache of keys or values: floats, or codes with a scale per row.
struct Cache {
  Tensor values, scales;

  Cache(am_dtype dtype, const std::vector<int64_t>& shape)
      : values(dtype, shape), scales(AM_FLOAT32, {shape[0], shape[1], shape[2]}) {
    // Rows that no query may attend to are NaN.
    if (!is_coded()) values.fill([](int64_t) { return NAN; });
    scales.fill([](int64_t) { return NAN; });
  }
  bool is_coded() const { return values.dtype() == AM_INT8 || values.dtype() == AM_FLOAT8_E4M3FN; }
  void draw(int64_t row) const {
    const int64_t size = values.dim(3);
    scales.set(row, 0.01 * (1.0 + std::fabs(normal())));
    for (int64_t i = 0; i < size; ++i) {
      values.set(row * size + i, is_coded() ? std::clamp(std::nearbyint(50 * normal()), -127.0, 127.0) : normal());
    }
  }
  // The values in double, decoded once.
  std::vector<double> decoded() const {
    std::vector<double> result = doubles(values);
    for (size_t i = 0; is_coded() && i < result.size(); ++i)
      result[i] *= scales.get(static_cast<int64_t>(i) / values.dim(3));
    return result;
  }
};

void test_over(const KernelEntry& entry, const Case& c, am_dtype stored) {
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
  const Cache k_cache(stored, cache_shape), v_cache(stored, cache_shape);
  const auto at = [&](int64_t s, int64_t head, int64_t key) {
    const auto block = static_cast<int64_t>(tables.get(s * width + key / c.block_size));
    return ((block * c.num_kv_heads + head) * c.block_size + key % c.block_size) * c.head_dim;
  };
  for (int64_t s = 0; s < num_sequences; ++s) {
    const auto& [queries, keys] = c.sequences[static_cast<size_t>(s)];
    for (int64_t key = c.window > 0 ? std::max<int64_t>(0, keys - queries - c.window + 1) : 0; key < keys; ++key) {
      for (int64_t head = 0; head < c.num_kv_heads; ++head) {
        for (const Cache* cache : {&k_cache, &v_cache}) cache->draw(at(s, head, key) / c.head_dim);
      }
    }
  }
  const double scale = 2.0 / std::sqrt(static_cast<double>(c.head_dim));
  const Tensor out(entry.dtype, {num_tokens + 2, c.num_heads, c.head_dim}, 1);
  const std::string what =
      "H=" + std::to_string(c.num_heads) + " C=" + std::to_string(c.head_dim) + " window=" + std::to_string(c.window);
  std::vector<am_tensor> inputs = {q.abi(),          k_cache.values.abi(), v_cache.values.abi(),
                                   cu_seqlens.abi(), seqlens.abi(),        tables.abi()};
  if (k_cache.is_coded()) inputs.insert(inputs.end(), {k_cache.scales.abi(), v_cache.scales.abi()});
  run_with_teams(entry, inputs, {out}, {attr(scale), attr(static_cast<int>(c.window))}, what);
  if (!is_compared()) return;
  const std::vector<double> queries_of = doubles(q), keys_of = k_cache.decoded(), values_of = v_cache.decoded();
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
          const double *query = &queries_of[static_cast<size_t>(row * c.head_dim)],
                       *cached = &keys_of[static_cast<size_t>(at(s, kv_head, key))];
          double score = 0.0, magnitude = 0.0;
          for (int64_t e = 0; e < c.head_dim; ++e) {
            const double term = scale * query[e] * cached[e];
            score += term;
            magnitude += std::fabs(term);
          }
          scores.push_back(score);
          greatest = std::max(greatest, score);
          score_magnitude = std::max(score_magnitude, magnitude);
        }
        double total = 0.0;
        for (double& score : scores) total += score = std::exp(score - greatest);
        std::vector<double> value(static_cast<size_t>(c.head_dim)), magnitude(static_cast<size_t>(c.head_dim));
        for (int64_t key = first; key <= position; ++key) {
          const double weight = scores[static_cast<size_t>(key - first)] / total;
          const double* cached = &values_of[static_cast<size_t>(at(s, kv_head, key))];
          for (size_t e = 0; e < value.size(); ++e) {
            value[e] += weight * cached[e];
            magnitude[e] += std::fabs(weight * cached[e]);
          }
        }
        for (size_t e = 0; e < value.size(); ++e) {
          // An absolute error of a score is a relative error of its weight.
          check_close(out.get(row * c.head_dim + static_cast<int64_t>(e)), value[e],
                      magnitude[e] * (1.0 + 0.1 * score_magnitude + 1e5 * weight_rounding(entry)), entry.dtype, entry,
                      what);
        }
      }
    }
  }
}

void test(const KernelEntry& entry) {
  for (const Case& each : kCases) test_over(entry, each, entry.dtype);
}

// Shortened runs alternate the two cache dtypes over the cases.
void test_quantized(const KernelEntry& entry) {
  size_t turn = static_cast<size_t>(entry.dtype);
  for (const Case& each : kCases) {
    ++turn;
    if (!is_quick() || turn % 2 == 0) test_over(entry, each, AM_INT8);
    if (!is_quick() || turn % 2 == 1) test_over(entry, each, AM_FLOAT8_E4M3FN);
  }
}

// Every code is dequantised exactly: with a single key, its weight is one.
void test_codes(const KernelEntry& entry) {
  constexpr int64_t kNumCodes = 256;
  for (const am_dtype stored : {AM_INT8, AM_FLOAT8_E4M3FN}) {
    const Cache k_cache(stored, {1, 1, 1, kNumCodes}), v_cache(stored, {1, 1, 1, kNumCodes});
    for (const Cache* cache : {&k_cache, &v_cache}) cache->scales.set(0, 1.0);
    for (int64_t i = 0; i < kNumCodes; ++i) {
      const bool is_nan = stored == AM_FLOAT8_E4M3FN && (i & 0x7f) == 0x7f;
      v_cache.values.bytes()[i] = static_cast<char>(is_nan ? 0 : i);
    }
    const Tensor q = random(entry.dtype, {1, 1, kNumCodes}), out(entry.dtype, {1, 1, kNumCodes});
    const Tensor cu_seqlens = of(AM_INT32, {0.0, 1.0}), seqlens = of(AM_INT32, {1.0});
    const Tensor table(AM_INT32, {1, 1});
    run_with_teams(entry,
                   {q.abi(), k_cache.values.abi(), v_cache.values.abi(), cu_seqlens.abi(), seqlens.abi(), table.abi(),
                    k_cache.scales.abi(), v_cache.scales.abi()},
                   {out}, {attr(1.0), attr(0)}, "codes");
    for (int64_t i = 0; i < kNumCodes; ++i) {
      check(out.get(i) == v_cache.values.get(i), entry, "code " + std::to_string(i));
    }
  }
}

// Batch invariance: a token's attention is the same bits alone, where its context is split, and as the last of many.
void test_batch(const KernelEntry& entry) {
  const int64_t num_queries = 30, num_keys = 700, num_heads = 7, head_dim = 64, width = (num_keys + 15) / 16;
  const Tensor q = random(entry.dtype, {num_queries, num_heads, head_dim});
  const Tensor k_cache = random(entry.dtype, {width, 1, 16, head_dim}),
               v_cache = random(entry.dtype, {width, 1, 16, head_dim});
  const Tensor tables(AM_INT32, {1, width});
  tables.fill([](int64_t i) { return static_cast<double>(i); });
  const Tensor seqlens = of(AM_INT32, {static_cast<double>(num_keys)});
  std::vector<Tensor> outputs;
  for (const int64_t count : {num_queries, int64_t{1}}) {
    const Tensor cu_seqlens = of(AM_INT32, {0.0, static_cast<double>(count)});
    const Tensor queries(entry.dtype, {count, num_heads, head_dim}), out(entry.dtype, {count, num_heads, head_dim});
    std::memcpy(queries.bytes(), q.bytes() + q.num_bytes() - queries.num_bytes(), queries.num_bytes());
    run_with_teams(entry, {queries.abi(), k_cache.abi(), v_cache.abi(), cu_seqlens.abi(), seqlens.abi(), tables.abi()},
                   {out}, {attr(0.125), attr(0)}, "batch");
    outputs.push_back(out);
  }
  const char* last = outputs[0].bytes() + outputs[0].num_bytes() - outputs[1].num_bytes();
  check(std::memcmp(last, outputs[1].bytes(), outputs[1].num_bytes()) == 0, entry, "alone and as the last of many");
}

// mla_attention has the bits of paged_attention over the keys as values, as far as values go.
void test_latent(const KernelEntry& entry) {
  const auto table = kernel_table();
  const auto paged = std::find_if(table.begin(), table.end(), [&](const KernelEntry& other) {
    return std::strcmp(other.operator_name, "paged_attention") == 0 && std::strcmp(other.variant, entry.variant) == 0 &&
           other.dtype == entry.dtype;
  });
  for (const auto& [num_heads, key_dim, value_dim, num_queries, num_keys] :
       std::vector<std::array<int64_t, 5>>{{16, 576, 512, 1, 700}, {128, 40, 32, 3, 300}, {3, 23, 21, 70, 90}}) {
    const int64_t width = (num_keys + 15) / 16;
    const Tensor q = random(entry.dtype, {num_queries, num_heads, key_dim}, 1);
    const Tensor cache = random(entry.dtype, {width, 1, 16, key_dim}, 3);
    const Tensor tables(AM_INT32, {1, width});
    tables.fill([&](int64_t i) { return static_cast<double>(width - 1 - i); });
    const Tensor cu_seqlens = of(AM_INT32, {0.0, static_cast<double>(num_queries)}),
                 seqlens = of(AM_INT32, {static_cast<double>(num_keys)});
    const Tensor out(entry.dtype, {num_queries, num_heads, value_dim}, 1);
    const Tensor whole(entry.dtype, {num_queries, num_heads, key_dim});
    const std::string what = "C=" + std::to_string(key_dim) + " value_dim=" + std::to_string(value_dim);
    run_with_teams(entry, {q.abi(), cache.abi(), cu_seqlens.abi(), seqlens.abi(), tables.abi()}, {out},
                   {attr(static_cast<int>(value_dim)), attr(0.07)}, what);
    run(*paged->kernel, {q.abi(), cache.abi(), cache.abi(), cu_seqlens.abi(), seqlens.abi(), tables.abi()},
        {whole.abi()}, {attr(0.07), attr(0)}, 1);
    bool are_same = true;
    for (int64_t row = 0; row < num_queries * num_heads; ++row) {
      for (int64_t i = 0; i < value_dim; ++i) are_same &= out.get(row * value_dim + i) == whole.get(row * key_dim + i);
    }
    check(are_same || !is_compared(), entry, what + ": differs from paged_attention");
  }
}

}  // namespace

int main() {
  for_each_kernel("paged_attention", test);
  for_each_kernel("paged_attention_quantized", test_quantized);
  for_each_kernel("paged_attention_quantized", test_codes);
  for_each_kernel("paged_attention", test_batch);
  for_each_kernel("mla_attention", test_latent);
  return report();
}

// Tests of the operators of mixtures of experts: what the conformance kit does not compare.
#include <array>

#include "kernel_testing.h"
#include "kernels/quantized_layout.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

struct Mixture {
  int64_t num_tokens, experts_per_token, num_experts, n, k;
};
// Decode and prefill, experts of more rows than a block has, several blocks of K; experts that share panels.
const std::vector<Mixture> kMixtures = {
    {0, 2, 3, 16, 8},     {1, 1, 1, 16, 31},   {1, 8, 40, 32, 70}, {3, 2, 4, 48, 33}, {40, 4, 8, 80, 130},
    {60, 2, 2, 32, 1100}, {290, 1, 2, 16, 96}, {9, 3, 7, 5, 40},   {33, 2, 5, 1, 12}, {20, 2, 3, 105, 50}};

std::string name_of(const Mixture& m) {
  return "T=" + std::to_string(m.num_tokens) + " A=" + std::to_string(m.experts_per_token) +
         " E=" + std::to_string(m.num_experts) + " N=" + std::to_string(m.n) + " K=" + std::to_string(m.k);
}

// Random experts; the last of them has no row where there are several, and choices of a token may be equal.
Tensor random_ids(const Mixture& m) {
  const int64_t used = std::max<int64_t>(1, m.num_experts - 1);
  Tensor ids(AM_INT32, {m.num_tokens, m.experts_per_token});
  ids.fill([&](int64_t) { return static_cast<double>(generator()() % static_cast<uint64_t>(used)); });
  return ids;
}

// Rows of a matrix, by index.
Tensor gathered(const Tensor& x, const std::vector<int64_t>& rows) {
  const int64_t size = x.size() / x.dim(0);
  const size_t row_bytes = static_cast<size_t>(size) * element_size(x.dtype());
  Tensor result(x.dtype(), {static_cast<int64_t>(rows.size()), size});
  for (size_t i = 0; i < rows.size(); ++i)
    std::memcpy(result.bytes() + i * row_bytes, x.bytes() + static_cast<size_t>(rows[i]) * row_bytes, row_bytes);
  return result;
}

// A storage of weights: packs rows of a matrix of the kernel's dtype.
using PackFn = std::function<Packed(const KernelEntry&, int input, const Tensor&)>;

Packed pack_in_format(const QuantizedLayout& layout, const Tensor& weight) {
  Packed packed{nullptr, weight.abi()};
  const size_t bytes = quantized_bytes(layout, weight.dim(0), weight.dim(1));
  packed.memory.reset(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), std::free);
  if (layout.is_mxfp4) {
    pack_as_mxfp4(layout, weight, packed.memory.get());
  } else {
    pack_quantized(layout, {weight.bytes(), weight.dtype(), nullptr, nullptr, nullptr}, 0, weight.dim(0), weight.dim(1),
                   packed.memory.get());
  }
  packed.tensor.data = packed.memory.get();
  return packed;
}

const KernelEntry* kernel_beside(const KernelEntry& entry, const char* operator_name,
                                 std::span<const KernelEntry> table) {
  for (const KernelEntry& other : table) {
    if (std::strcmp(other.operator_name, operator_name) == 0 && std::strcmp(other.variant, entry.variant) == 0 &&
        other.dtype == entry.dtype)
      return &other;
  }
  return nullptr;
}

// Every row of the grouped product has the bits of the dense product of its expert's rows, for one to four workers.
// `num_weights` is 2 for moe_gate_up_silu, 1 for moe_linear.
void test_equals_dense(const KernelEntry& entry, const KernelEntry& dense, size_t num_weights, const PackFn& pack,
                       const std::string& storage) {
  for (const Mixture& m : kMixtures) {
    const std::string what = storage + " " + name_of(m);
    const bool is_linear = num_weights == 1;
    const int64_t num_pairs = m.num_tokens * m.experts_per_token;
    const Tensor ids = random_ids(m);
    const Tensor x = is_linear ? random(entry.dtype, {m.num_tokens, m.experts_per_token, m.k}, 3)
                               : random(entry.dtype, {m.num_tokens, m.k}, 3);
    const Tensor bias = random(entry.dtype, {m.num_experts * m.n}, 1);
    std::vector<Tensor> weights;
    std::vector<am_tensor> inputs = {x.abi(), ids.abi()};
    std::vector<Packed> packed;
    for (size_t i = 0; i < num_weights; ++i) {
      weights.push_back(random(entry.dtype, {m.num_experts * m.n, m.k}));
      packed.push_back(pack(entry, static_cast<int>(2 + i), weights[i]));
      inputs.push_back(packed[i].abi());
    }
    std::vector<am_attr> attrs = {attr(static_cast<int>(m.num_experts))};
    if (is_linear) {
      inputs.push_back(bias.abi());
    } else {
      inputs.insert(inputs.end(), 2, Tensor().abi());
      attrs.insert(attrs.end(), {attr(1.0), attr(0.0), attr(0.0)});
    }
    const Tensor out(entry.dtype, {m.num_tokens, m.experts_per_token, m.n}, 1);
    std::vector<char> expected(out.num_bytes());
    const size_t row_bytes = static_cast<size_t>(m.n) * element_size(entry.dtype);
    for (int64_t expert = 0; expert < m.num_experts; ++expert) {
      std::vector<int64_t> pairs, rows, columns;
      for (int64_t pair = 0; pair < num_pairs; ++pair) {
        if (ids.get(pair) != static_cast<double>(expert)) continue;
        pairs.push_back(pair);
        rows.push_back(is_linear ? pair : pair / m.experts_per_token);
      }
      if (pairs.empty()) continue;
      for (int64_t i = 0; i < m.n; ++i) columns.push_back(expert * m.n + i);
      Tensor flat(entry.dtype, {is_linear ? num_pairs : m.num_tokens, m.k});
      std::memcpy(flat.bytes(), x.bytes(), x.num_bytes());
      const Tensor some = gathered(flat, rows);
      std::vector<Packed> parts;
      std::vector<am_tensor> dense_inputs = {some.abi()};
      for (size_t i = 0; i < num_weights; ++i) {
        parts.push_back(pack(dense, static_cast<int>(1 + i), gathered(weights[i], columns)));
        dense_inputs.push_back(parts[i].abi());
      }
      Tensor part_of_bias(entry.dtype, {m.n});
      part_of_bias.fill([&](int64_t i) { return bias.get(expert * m.n + i); });
      if (is_linear) dense_inputs.push_back(part_of_bias.abi());
      const Tensor result(entry.dtype, {static_cast<int64_t>(pairs.size()), m.n});
      run(*dense.kernel, dense_inputs, {result.abi()}, {}, 1);
      for (size_t i = 0; i < pairs.size(); ++i)
        std::memcpy(expected.data() + static_cast<size_t>(pairs[i]) * row_bytes, result.bytes() + i * row_bytes,
                    row_bytes);
    }
    for (int num_workers : {1, 2, 3, 4}) {
      std::memset(out.bytes(), 0xff, out.num_bytes());
      run(*entry.kernel, inputs, {out.abi()}, attrs, num_workers);
      check(expected.empty() || std::memcmp(out.bytes(), expected.data(), expected.size()) == 0, entry,
            what + ": differs from the dense product with " + std::to_string(num_workers) + " workers");
    }
  }
}

// linear_per_head has the bits of moe_linear in which head h of every token chooses expert h.
void test_per_head(const KernelEntry& entry, const KernelEntry& moe_linear, const PackFn& pack,
                   const std::string& storage) {
  for (const Mixture& m : kMixtures) {
    const int64_t num_heads = m.num_experts;
    const Tensor x = random(entry.dtype, {m.num_tokens, num_heads, m.k}, 3);
    const Tensor w = random(entry.dtype, {num_heads * m.n, m.k});
    const Packed packed = pack(entry, 1, w), experts = pack(moe_linear, 2, w);
    const Tensor ids(AM_INT32, {m.num_tokens, num_heads});
    ids.fill([&](int64_t i) { return static_cast<double>(i % num_heads); });
    const Tensor out(entry.dtype, {m.num_tokens, num_heads, m.n}, 1),
        expected(entry.dtype, {m.num_tokens, num_heads, m.n});
    const std::string what = storage + " " + name_of(m);
    run_with_teams(entry, {x.abi(), packed.abi()}, {out}, {attr(static_cast<int>(num_heads))}, what);
    run(*moe_linear.kernel, {x.abi(), ids.abi(), experts.abi()}, {expected.abi()}, {attr(static_cast<int>(num_heads))},
        1);
    check(out.size() == 0 || std::memcmp(out.bytes(), expected.bytes(), out.num_bytes()) == 0, entry,
          what + ": differs from moe_linear");
  }
}

void test_products(std::span<const KernelEntry> table, const PackFn& pack, const std::string& storage) {
  for_each_kernel(
      "moe_linear",
      [&](const KernelEntry& entry) {
        test_equals_dense(entry, *kernel_beside(entry, "linear", table), 1, pack, storage);
      },
      table);
  for_each_kernel(
      "linear_per_head",
      [&](const KernelEntry& entry) {
        test_per_head(entry, *kernel_beside(entry, "moe_linear", table), pack, storage);
      },
      table);
  for_each_kernel(
      "moe_gate_up_silu",
      [&](const KernelEntry& entry) {
        test_equals_dense(entry, *kernel_beside(entry, "gate_up_silu", table), 2, pack, storage);
      },
      table);
}

// Bits of a row's logits do not depend on the other rows or on the number of workers.
void test_router_logits(const KernelEntry& entry) {
  for (const auto& [rows, num_experts, k] : {std::array<int64_t, 3>{11, 21, 133}, {7, 128, 64}, {1, 3, 5}}) {
    const Tensor x = random(entry.dtype, {rows, k}, 1), w = random(entry.dtype, {num_experts, k}, 3);
    const Tensor bias = random(entry.dtype, {num_experts}), all(AM_FLOAT32, {rows, num_experts});
    run_with_teams(entry, {x.abi(), w.abi(), bias.abi()}, {all}, {}, "router_logits");
    for (int64_t r = 0; r < rows; ++r) {
      const Tensor row = gathered(x, {r}), alone(AM_FLOAT32, {1, num_experts});
      run(*entry.kernel, {row.abi(), w.abi(), bias.abi()}, {alone.abi()}, {}, 1);
      check(
          std::memcmp(alone.bytes(), all.bytes() + static_cast<size_t>(r) * alone.num_bytes(), alone.num_bytes()) == 0,
          entry, "a row's logits depend on other rows");
    }
  }
}

std::vector<am_attr> router_attrs(int k, int sigmoid, int num_groups, int top_groups, int group_score_k) {
  return {attr(k), attr(sigmoid), attr(1), attr(num_groups), attr(top_groups), attr(group_score_k), attr(1.0)};
}

// Whatever the logits are, ids are experts, which later kernels rely on.
void test_ids_are_in_range(const KernelEntry& entry) {
  const double inf = INFINITY;
  for (int64_t num_experts : {8, 60, 512}) {
    for (double value : {0.0, inf, -inf, static_cast<double>(NAN), 1e30, -1e30}) {
      for (int sigmoid : {0, 1}) {
        for (int top_groups : {4, 2}) {
          const Tensor logits = random(AM_FLOAT32, {5, num_experts}, 1);
          for (int64_t i = 0; i < 4 * num_experts; ++i) {
            if (i / num_experts == 0 || i % 3 == i / num_experts - 1) logits.set(i, value);
          }
          const Tensor ids(AM_INT32, {5, 6}), weights(AM_FLOAT32, {5, 6});
          ids.fill([](int64_t) { return -1.0; });
          run_with_teams(entry, {logits.abi(), Tensor().abi()}, {ids, weights},
                         router_attrs(6, sigmoid, 4, top_groups, 2), "router_topk");
          for (int64_t i = 0; i < ids.size(); ++i) {
            check(ids.get(i) >= 0 && ids.get(i) < static_cast<double>(num_experts), entry, "an id is out of range");
          }
        }
      }
    }
  }
}

// Equal to a sum in double, in rows of any length.
void test_combine(const KernelEntry& entry) {
  for (const auto& [t, a, d] : {std::array<int64_t, 3>{3, 8, 70}, {1, 2, 2048}, {40, 1, 5}, {0, 2, 8}}) {
    const Tensor x = random(entry.dtype, {t, a, d}, 3), weights = random(AM_FLOAT32, {t, a}), out(entry.dtype, {t, d});
    run_with_teams(entry, {x.abi(), weights.abi()}, {out}, {}, "moe_combine");
    for (int64_t i = 0; i < t * d; ++i) {
      double value = 0.0, magnitude = 0.0;
      for (int64_t j = 0; j < a; ++j) {
        const double term = weights.get(i / d * a + j) * x.get((i / d * a + j) * d + i % d);
        value += term;
        magnitude += std::fabs(term);
      }
      check_close(out.get(i), value, magnitude, entry.dtype, entry, "moe_combine");
    }
  }
}

}  // namespace

int main() {
  test_products(
      kernel_table(), [](const KernelEntry& entry, int input, const Tensor& w) { return pack(entry, input, w); },
      "dense");
  const std::vector<QuantizedLayout> layouts = {{8, 32, 0, 0}, {4, 32, 0, 0},    {4, 32, 1, 0},
                                                {8, 0, 0, 0},  {4, 32, 0, 1, 1}, {4, 32, 0, 0, 0, 1}};
  for (const QuantizedLayout& layout : layouts) {
    test_products(
        quantized_kernel_table(), [&](const KernelEntry&, int, const Tensor& w) { return pack_in_format(layout, w); },
        std::to_string(layout.bits) + " bits");
  }
  for_each_kernel("router_logits", test_router_logits);
  for_each_kernel("router_topk", test_ids_are_in_range);
  for_each_kernel("moe_combine", test_combine);
  return report();
}

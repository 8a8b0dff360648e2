// Tests of linear, lm_head, gate_up_silu and qkv_rope_cache_write against float64 loops, for any storage of the
// weights.
#ifndef AETHER_CPU_TESTS_MATRIX_CASES_H
#define AETHER_CPU_TESTS_MATRIX_CASES_H

#include "kernel_testing.h"

namespace aether::cpu::testing {

struct Weight {
  Tensor values;
  Packed packed;
};

// Storage of weights. `weight` makes a random weight [n, k] for an input; `computed_with` returns the activations [t,
// k] after the kernel's own quantisation.
struct Storage {
  std::function<Weight(const KernelEntry&, int input, int64_t n, int64_t k, double scale)> weight;
  std::function<Tensor(const KernelEntry&, const Tensor&)> computed_with;
  std::string name;
  // The weight [n, k] that a kernel multiplies `t` rows by.
  std::function<Tensor(const KernelEntry&, int64_t t, const Tensor&)> multiplied = [](const KernelEntry&, int64_t,
                                                                                      const Tensor& w) { return w; };
};

struct Sum {
  double value = 0.0, magnitude = 0.0;

  void add(double term) {
    value += term;
    magnitude += std::fabs(term);
  }
};

// A tensor [rows, k] in double.
class Matrix {
 public:
  explicit Matrix(const Tensor& tensor) : k_(tensor.dim(1)), values_(doubles(tensor)) {}
  std::span<const double> row(int64_t i) const {
    return std::span(values_).subspan(static_cast<size_t>(i * k_), static_cast<size_t>(k_));
  }

 private:
  int64_t k_;
  std::vector<double> values_;
};

inline Sum dot(const Matrix& x, int64_t row, const Matrix& w, int64_t column) {
  const std::span<const double> a = x.row(row), b = w.row(column);
  Sum sums[4];  // independent chains hide the latency of additions
  size_t i = 0;
  for (; i + 4 <= a.size(); i += 4) {
    for (size_t j = 0; j < 4; ++j) sums[j].add(a[i + j] * b[i + j]);
  }
  for (; i < a.size(); ++i) sums[0].add(a[i] * b[i]);
  for (size_t j = 1; j < 4; ++j) {
    sums[0].value += sums[j].value;
    sums[0].magnitude += sums[j].magnitude;
  }
  return sums[0];
}

inline std::string sizes(int64_t t, int64_t n, int64_t k) {
  return "T=" + std::to_string(t) + " N=" + std::to_string(n) + " K=" + std::to_string(k);
}

struct Shape {
  int64_t t, n, k;
};
// Every tile size, skinny and large products, every kind of tail, several blocks of K.
inline const std::vector<Shape> kShapes = {{0, 5, 7},    {1, 1, 1},     {1, 130, 33},  {2, 17, 64},    {3, 64, 31},
                                           {4, 70, 129}, {5, 33, 100},  {6, 16, 16},   {7, 40, 63},    {8, 48, 2},
                                           {9, 15, 35},  {10, 31, 96},  {11, 95, 65},  {12, 80, 1030}, {13, 50, 3},
                                           {23, 34, 9},  {25, 300, 11}, {37, 49, 515}, {300, 66, 40},  {150, 17, 1029}};

inline void test_linear(const KernelEntry& entry, const Storage& storage) {
  const bool is_head = std::string(entry.operator_name) == "lm_head";
  int misalignment = 0;
  for (const auto& [t, n, k] : kShapes) {
    misalignment = (misalignment + 3) % 8;
    const Tensor x = random(entry.dtype, {t, k}, misalignment), bias = random(entry.dtype, {n}, 1);
    const Weight w = storage.weight(entry, 1, n, k, 1.0);
    const std::string what = storage.name + " " + sizes(t, n, k);
    const bool has_bias = t % 2 == 1;
    const am_dtype out_type = is_head ? AM_FLOAT32 : entry.dtype;
    const Tensor out(out_type, {t, n}, misalignment);
    const std::vector<am_tensor> inputs = {x.abi(), w.packed.abi(), has_bias ? bias.abi() : Tensor().abi()};
    run_with_teams(entry, inputs, {out}, {}, what);
    if (!is_compared()) continue;
    const Matrix computed(storage.computed_with(entry, x)), weight(storage.multiplied(entry, t, w.values));
    for (int64_t r = 0; r < t; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        Sum sum = dot(computed, r, weight, c);
        if (has_bias) sum.add(bias.get(c));
        check_close(out.get(r * n + c), sum.value, sum.magnitude, out_type, entry, what);
      }
    }
  }
}

// Batch invariance: a row's result does not depend on the number of rows. Other kernels take one arithmetic for many
// rows.
inline void test_rows_are_independent(const KernelEntry& entry, const Storage& storage) {
  const int64_t k = 611, n = 50;
  const Tensor x = random(entry.dtype, {200, k});
  const Packed packed = storage.weight(entry, 1, n, k, 1.0).packed;
  const Tensor all(entry.dtype, {200, n});
  run(*entry.kernel, {x.abi(), packed.abi(), Tensor().abi()}, {all.abi()}, {}, 1);
  for (int64_t rows : {1, 3, 8, 20, 90}) {
    if (!entry.is_batch_invariant && rows < 90) continue;
    am_tensor part = x.abi();
    part.shape[0] = rows;
    const Tensor out(entry.dtype, {rows, n});
    run(*entry.kernel, {part, packed.abi(), Tensor().abi()}, {out.abi()}, {}, 1);
    check(std::memcmp(out.bytes(), all.bytes(), out.num_bytes()) == 0, entry,
          std::to_string(rows) + " rows differ from 200");
  }
}

inline void test_gate_up_silu(const KernelEntry& entry, const Storage& storage) {
  for (const auto& [t, n, k] : kShapes) {
    const Tensor x = random(entry.dtype, {t, k}, 5);
    const Weight gate = storage.weight(entry, 1, n, k, 0.3), up = storage.weight(entry, 2, n, k, 0.3);
    const std::string what = storage.name + " " + sizes(t, n, k);
    const Tensor out(entry.dtype, {t, n}, 1);
    run_with_teams(entry, {x.abi(), gate.packed.abi(), up.packed.abi()}, {out}, {}, what);
    if (!is_compared()) continue;
    const Matrix computed(storage.computed_with(entry, x)), gates(storage.multiplied(entry, t, gate.values)),
        ups(storage.multiplied(entry, t, up.values));
    for (int64_t r = 0; r < t; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        const Sum g = dot(computed, r, gates, c), u = dot(computed, r, ups, c);
        const double s = g.value / (1.0 + std::exp(-g.value));
        const double magnitude = 1.1 * g.magnitude * std::fabs(u.value) + std::fabs(s) * u.magnitude;
        check_close(out.get(r * n + c), s * u.value, magnitude, entry.dtype, entry, what);
      }
    }
  }
}

struct Heads {
  int64_t t, k, num_heads, num_kv_heads, head_dim;
  bool has_bias, has_norm;
};

// One head of one token in double: bias, norm, rotation. `magnitude` bounds the error in units of float32 precision.
inline void expected_head(const Matrix& x, int64_t t, const Matrix& w, const Tensor& bias, const Tensor& norm,
                          bool is_rotated, const Tensor& table, int64_t head, int64_t c, double eps,
                          std::vector<double>& values, double& magnitude) {
  values.assign(static_cast<size_t>(c), 0.0);
  magnitude = 0.0;
  for (int64_t i = 0; i < c; ++i) {
    Sum sum = dot(x, t, w, head * c + i);
    if (bias.size()) sum.add(bias.get(head * c + i));
    values[static_cast<size_t>(i)] = sum.value;
    magnitude = std::max(magnitude, sum.magnitude);
  }
  if (norm.size()) {
    double squares = 0.0;
    for (double value : values) squares += value * value;
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(c) + eps);
    double greatest = 0.0;
    for (int64_t i = 0; i < c; ++i) {
      values[static_cast<size_t>(i)] *= factor * norm.get(i);
      greatest = std::max(greatest, std::fabs(factor * norm.get(i)));
    }
    magnitude *= 2.0 * greatest;
  }
  if (is_rotated) {
    const std::vector<double> before = values;
    for (int64_t i = 0; i < c / 2; ++i) {
      const double cosine = table.get(t * c + i), sine = table.get(t * c + c / 2 + i);
      const double first = before[static_cast<size_t>(i)], second = before[static_cast<size_t>(i + c / 2)];
      values[static_cast<size_t>(i)] = first * cosine - second * sine;
      values[static_cast<size_t>(i + c / 2)] = second * cosine + first * sine;
    }
    magnitude *= 2.0;
  }
}

inline void test_qkv(const KernelEntry& entry, const Storage& storage) {
  const std::vector<Heads> cases = {{1, 48, 7, 1, 8, true, false},     {5, 65, 4, 2, 64, true, false},
                                    {40, 33, 3, 3, 80, false, true},   {1, 100, 2, 1, 128, true, true},
                                    {30, 20, 5, 1, 24, true, true},    {3, 520, 14, 2, 64, true, false},
                                    {170, 40, 4, 2, 16, false, false}, {2, 31, 3, 1, 10, true, false}};
  for (const Heads& h : cases) {
    const int64_t q_size = h.num_heads * h.head_dim, kv_size = h.num_kv_heads * h.head_dim, c = h.head_dim;
    const int64_t block_size = 5, num_blocks = h.t / block_size + 3;
    const std::string what = storage.name + " " + sizes(h.t, q_size, h.k) + " C=" + std::to_string(c);
    const Tensor x = random(entry.dtype, {h.t, h.k}, 3), none;
    const Weight w[3] = {storage.weight(entry, 1, q_size, h.k, 1.0), storage.weight(entry, 2, kv_size, h.k, 1.0),
                         storage.weight(entry, 3, kv_size, h.k, 1.0)};
    const Tensor bias[3] = {h.has_bias ? random(entry.dtype, {q_size}) : none,
                            h.has_bias ? random(entry.dtype, {kv_size}) : none,
                            h.has_bias ? random(entry.dtype, {kv_size}) : none};
    const Tensor norm[3] = {h.has_norm ? random(entry.dtype, {c}) : none, h.has_norm ? random(entry.dtype, {c}) : none,
                            none};
    const Tensor table = random(AM_FLOAT32, {h.t, c}, 1, 0.5);
    Tensor slots(AM_INT64, {h.t});
    slots.fill(
        [&](int64_t t) { return t % 7 == 2 ? -1.0 : static_cast<double>((t * 3 + 4) % (num_blocks * block_size)); });
    std::vector<int64_t> owner(static_cast<size_t>(num_blocks * block_size), -1);
    for (int64_t t = 0; t < h.t; ++t) {
      const auto slot = static_cast<int64_t>(slots.get(t));
      if (slot < 0) continue;
      if (owner[static_cast<size_t>(slot)] >= 0) {
        slots.set(t, -1);
      } else {
        owner[static_cast<size_t>(slot)] = t;
      }
    }
    const Tensor q(entry.dtype, {h.t, h.num_heads, c});
    const Tensor k_cache = random(entry.dtype, {num_blocks, h.num_kv_heads, block_size, c});
    const Tensor v_cache = random(entry.dtype, {num_blocks, h.num_kv_heads, block_size, c});
    const std::vector<char> k_before(k_cache.bytes(), k_cache.bytes() + k_cache.num_bytes());
    run_with_teams(
        entry,
        {x.abi(), w[0].packed.abi(), w[1].packed.abi(), w[2].packed.abi(), bias[0].abi(), bias[1].abi(), bias[2].abi(),
         norm[0].abi(), norm[1].abi(), table.abi(), slots.abi(), k_cache.abi(), v_cache.abi()},
        {q, k_cache, v_cache},
        {attr(static_cast<int>(h.num_heads)), attr(static_cast<int>(h.num_kv_heads)), attr(1e-6)}, what);
    if (!is_compared()) continue;
    const Matrix computed(storage.computed_with(entry, x));
    const auto multiplied = [&](int i) { return Matrix(storage.multiplied(entry, h.t, w[i].values)); };
    const Matrix weights[3] = {multiplied(0), multiplied(1), multiplied(2)};
    std::vector<double> want;
    double magnitude;
    for (int64_t t = 0; t < h.t; ++t) {
      for (int64_t head = 0; head < h.num_heads; ++head) {
        expected_head(computed, t, weights[0], bias[0], norm[0], true, table, head, c, 1e-6, want, magnitude);
        for (int64_t i = 0; i < c; ++i) {
          check_close(q.get((t * h.num_heads + head) * c + i), want[static_cast<size_t>(i)], magnitude, entry.dtype,
                      entry, "q " + what);
        }
      }
    }
    for (int64_t slot = 0; slot < num_blocks * block_size; ++slot) {
      const int64_t t = owner[static_cast<size_t>(slot)];
      for (int64_t head = 0; head < h.num_kv_heads; ++head) {
        const int64_t at = ((slot / block_size * h.num_kv_heads + head) * block_size + slot % block_size) * c;
        if (t < 0) {
          const size_t byte = static_cast<size_t>(at) * element_size(entry.dtype);
          const size_t length = static_cast<size_t>(c) * element_size(entry.dtype);
          check(std::memcmp(k_cache.bytes() + byte, k_before.data() + byte, length) == 0, entry,
                "untouched slot " + what);
          continue;
        }
        for (int which : {1, 2}) {
          expected_head(computed, t, weights[which], bias[which], norm[which], which == 1, table, head, c, 1e-6, want,
                        magnitude);
          const Tensor& cache = which == 1 ? k_cache : v_cache;
          for (int64_t i = 0; i < c; ++i) {
            check_close(cache.get(at + i), want[static_cast<size_t>(i)], magnitude, entry.dtype, entry,
                        (which == 1 ? "k " : "v ") + what);
          }
        }
      }
    }
  }
}

}  // namespace aether::cpu::testing

#endif  // AETHER_CPU_TESTS_MATRIX_CASES_H

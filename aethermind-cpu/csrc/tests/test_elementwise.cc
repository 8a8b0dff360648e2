// Tests of the elementwise operators, norms, rope, and those that copy rows.
#include "kernel_testing.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

const std::vector<std::vector<int64_t>> kShapes = {{0, 8},   {1, 1},     {1, 15},  {3, 16},  {2, 17},
                                                   {7, 100}, {5, 3, 33}, {2, 896}, {1, 5000}};

double silu(double x) { return x / (1.0 + std::exp(-x)); }

// `relative` is the relative tolerance, far stricter than the operators' contract.
void test_unary(const KernelEntry& entry, double (*f)(double), double relative, const std::vector<am_attr>& attrs = {},
                bool is_positive = false) {
  for (const auto& shape : kShapes) {
    const Tensor x = random(entry.dtype, shape, 3, 8.0), out(entry.dtype, shape, 1);
    if (is_positive) x.fill([](int64_t) { return std::exp(20.0 * normal()) + 1e-44; });
    if (x.size() > 20 && !is_positive) {
      x.set(0, -200.0);
      x.set(19, 80.0);
    }
    run_with_teams(entry, {x.abi()}, {out}, attrs, "");
    for (int64_t i = 0; i < x.size(); ++i) {
      const double want = f(x.get(i));
      check_close(out.get(i), want, relative * 1e5 * std::fabs(want), entry.dtype, entry, "unary");
    }
    const Tensor expected(entry.dtype, shape);
    std::memcpy(expected.bytes(), out.bytes(), out.num_bytes());
    run(*entry.kernel, {x.abi()}, {x.abi()}, attrs, 2);
    check(std::memcmp(x.bytes(), expected.bytes(), x.num_bytes()) == 0, entry, "in place");
  }
}

void test_edges(const KernelEntry& entry, const std::vector<double>& inputs, const std::vector<double>& results) {
  const Tensor x(entry.dtype, {static_cast<int64_t>(inputs.size())}, 1), out(entry.dtype, {x.size()});
  x.fill([&](int64_t i) { return inputs[static_cast<size_t>(i)]; });
  run_with_teams(entry, {x.abi()}, {out}, {attr(0)}, "");
  for (int64_t i = 0; i < x.size(); ++i) {
    const double want = results[static_cast<size_t>(i)];
    check(std::isnan(want) ? std::isnan(out.get(i)) : out.get(i) == want, entry, "edge " + std::to_string(i));
  }
}

double gelu(double x) { return 0.5 * x * std::erfc(-x * std::sqrt(0.5)); }
double approximate_gelu(double x) {
  return x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

// Dense around zeros of the result and changes of the exponent.
void test_log_near_one(const KernelEntry& entry) {
  const Tensor x(entry.dtype, {4000}), out(entry.dtype, {4000});
  x.fill([](int64_t i) { return 0.5 + static_cast<double>(i) / 2500.0; });
  run_with_teams(entry, {x.abi()}, {out}, {}, "");
  for (int64_t i = 0; i < x.size(); ++i) {
    const double want = std::log(x.get(i));
    check_close(out.get(i), want, 0.012 * std::fabs(want), entry.dtype, entry, "log near one");
  }
}

void test_binary(const KernelEntry& entry, double (*f)(double, double)) {
  for (const auto& shape : kShapes) {
    const Tensor x = random(entry.dtype, shape, 1), y = random(entry.dtype, shape, 2), out(entry.dtype, shape, 3);
    run_with_teams(entry, {x.abi(), y.abi()}, {out}, {}, "");
    for (int64_t i = 0; i < x.size(); ++i) {
      check_close(out.get(i), f(x.get(i), y.get(i)), std::fabs(x.get(i)) + std::fabs(y.get(i)), entry.dtype, entry,
                  "binary");
    }
    const Tensor expected(entry.dtype, shape);
    std::memcpy(expected.bytes(), out.bytes(), out.num_bytes());
    run(*entry.kernel, {x.abi(), y.abi()}, {x.abi()}, {}, 2);
    check(std::memcmp(x.bytes(), expected.bytes(), x.num_bytes()) == 0, entry, "in place");
  }
}

void test_div(const KernelEntry& entry) {
  for (const auto& shape : kShapes) {
    const Tensor x = random(entry.dtype, shape, 1), y = random(entry.dtype, shape, 2), out(entry.dtype, shape, 3);
    run_with_teams(entry, {x.abi(), y.abi()}, {out}, {}, "");
    for (int64_t i = 0; i < x.size(); ++i) {
      const double want = x.get(i) / y.get(i);
      check_close(out.get(i), want, 0.01 * std::fabs(want), entry.dtype, entry, "div");
    }
  }
}

// Multiplying by one preserves every float16 (a NaN becomes quiet). The product of two is exact in float32 and is
// rounded once: to even, to subnormals, to infinity.
void test_float16_rounding(const KernelEntry& entry) {
  if (entry.dtype != AM_FLOAT16) return;
  const int64_t count = 1 << 16;
  const Tensor x(AM_FLOAT16, {count}), y(AM_FLOAT16, {count}), out(AM_FLOAT16, {count});
  auto *bits = reinterpret_cast<uint16_t*>(x.bytes()), *others = reinterpret_cast<uint16_t*>(y.bytes());
  const auto* got = reinterpret_cast<const uint16_t*>(out.bytes());
  for (int64_t i = 0; i < count; ++i) {
    bits[i] = static_cast<uint16_t>(i);
    others[i] = to_float16(1.0);
  }
  run(*entry.kernel, {x.abi(), y.abi()}, {out.abi()}, {}, 1);
  for (int64_t i = 0; i < count; ++i) {
    const bool is_nan = (bits[i] & 0x7fff) > 0x7c00;
    check(got[i] == (is_nan ? bits[i] | 0x200 : bits[i]), entry, "float16 bits " + std::to_string(i));
  }
  for (int round = 0; round < 8; ++round) {
    for (int64_t i = 0; i < count; ++i) others[i] = static_cast<uint16_t>(generator()());
    run(*entry.kernel, {x.abi(), y.abi()}, {out.abi()}, {}, 1);
    for (int64_t i = 0; i < count; ++i) {
      const double product = x.get(i) * y.get(i);
      const bool is_same = std::isnan(product) ? (got[i] & 0x7e00) == 0x7e00 : got[i] == to_float16(product);
      check(is_same, entry, "float16 product of " + std::to_string(bits[i]) + " and " + std::to_string(others[i]));
    }
  }
}

void test_rms_norm(const KernelEntry& entry) {
  const bool has_add = std::string(entry.operator_name) == "add_rms_norm";
  for (const auto& shape : kShapes) {
    const int64_t d = shape.back();
    const Tensor x = random(entry.dtype, shape, 1), residual = random(entry.dtype, shape, 3),
                 w = random(entry.dtype, {d}, 2);
    const Tensor out(entry.dtype, shape, 1), total(entry.dtype, shape);
    std::vector<am_tensor> inputs = {x.abi(), w.abi()};
    std::vector<Tensor> outputs = {out};
    if (has_add) {
      inputs = {x.abi(), residual.abi(), w.abi()};
      outputs.push_back(total);
    }
    run_with_teams(entry, inputs, outputs, {attr(1e-5)}, "");
    for (int64_t r = 0; r < x.size() / d; ++r) {
      double squares = 0.0;
      for (int64_t i = r * d; i < (r + 1) * d; ++i) {
        if (has_add)
          check_close(total.get(i), x.get(i) + residual.get(i), std::fabs(x.get(i) + residual.get(i)), entry.dtype,
                      entry, "total");
        const double value = has_add ? total.get(i) : x.get(i);
        squares += value * value;
      }
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(d) + 1e-5);
      for (int64_t i = r * d; i < (r + 1) * d; ++i) {
        const double want = (has_add ? total.get(i) : x.get(i)) * factor * w.get(i - r * d);
        check_close(out.get(i), want, std::fabs(want), entry.dtype, entry, "norm");
      }
    }
  }
}

void test_rope_table(const KernelEntry& entry) {
  for (int64_t e : {1, 4, 33}) {
    const Tensor positions = of(AM_INT64, {0, 1, 17, 4095, 131071}), inv_freq(AM_FLOAT32, {e}, 1),
                 out(AM_FLOAT32, {5, 2 * e}, 3);
    inv_freq.fill([&](int64_t i) { return std::pow(1e6, -static_cast<double>(i) / static_cast<double>(e)); });
    run_with_teams(entry, {positions.abi(), inv_freq.abi()}, {out}, {attr(1.25)}, "");
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t i = 0; i < e; ++i) {
        const auto angle =
            static_cast<double>(static_cast<float>(positions.get(t)) * static_cast<float>(inv_freq.get(i)));
        check_close(out.get(t * 2 * e + i), 1.25 * std::cos(angle), 0.02, AM_FLOAT32, entry, "cos");
        check_close(out.get(t * 2 * e + e + i), 1.25 * std::sin(angle), 0.02, AM_FLOAT32, entry, "sin");
      }
    }
  }
}

void test_rope(const KernelEntry& entry) {
  for (int64_t c : {2, 8, 10, 64, 80, 128}) {
    for (bool is_interleaved : {false, true}) {
      const int64_t t = 5, h = 3;
      const Tensor x = random(entry.dtype, {t, h, c}, 1), table = random(AM_FLOAT32, {t, c}, 3),
                   out(entry.dtype, {t, h, c}, 1);
      run_with_teams(entry, {x.abi(), table.abi()}, {out}, {attr(is_interleaved ? 1 : 0)}, "");
      for (int64_t row = 0; row < t * h; ++row) {
        for (int64_t i = 0; i < c / 2; ++i) {
          const int64_t a = row * c + (is_interleaved ? 2 * i : i),
                        b = row * c + (is_interleaved ? 2 * i + 1 : i + c / 2);
          const double cosine = table.get(row / h * c + i), sine = table.get(row / h * c + c / 2 + i);
          const double magnitude = std::fabs(x.get(a)) + std::fabs(x.get(b));
          check_close(out.get(a), x.get(a) * cosine - x.get(b) * sine, 3 * magnitude, entry.dtype, entry, "rope");
          check_close(out.get(b), x.get(b) * cosine + x.get(a) * sine, 3 * magnitude, entry.dtype, entry, "rope");
        }
      }
      const Tensor expected(entry.dtype, {t, h, c});
      std::memcpy(expected.bytes(), out.bytes(), out.num_bytes());
      run(*entry.kernel, {x.abi(), table.abi()}, {x.abi()}, {attr(is_interleaved ? 1 : 0)}, 2);
      check(std::memcmp(x.bytes(), expected.bytes(), x.num_bytes()) == 0, entry, "in place");
    }
  }
}

void test_rows(const KernelEntry& entry) {
  const std::string name = entry.operator_name;
  for (int64_t d : {1, 16, 37}) {
    const Tensor table = random(entry.dtype, {19, d}, 1), out(entry.dtype, {5, d}, 3),
                 rows = of(name == "position_embedding" ? AM_INT64 : AM_INT32, {18, 0, 3, 3, 15});
    if (name != "gather_rows") {
      const Packed packed = entry.num_packs > 0 ? pack(entry, 1, table) : Packed{nullptr, table.abi()};
      run_with_teams(entry, {rows.abi(), packed.abi()}, {out}, {}, "");
    } else {
      run_with_teams(entry, {table.abi(), rows.abi()}, {out}, {}, "");
    }
    for (int64_t i = 0; i < out.size(); ++i) {
      check(out.get(i) == table.get(static_cast<int64_t>(rows.get(i / d)) * d + i % d), entry, "row");
    }
  }
}

void test_scatter_rows(const KernelEntry& entry) {
  for (int64_t d : {1, 16, 37}) {
    const Tensor x = random(entry.dtype, {9, d}, 1), values = random(entry.dtype, {3, d}, 2),
                 out(entry.dtype, {9, d}, 3), rows = of(AM_INT32, {8, 0, 3});
    run_with_teams(entry, {x.abi(), values.abi(), rows.abi()}, {out}, {}, "");
    for (int64_t i = 0; i < out.size(); ++i) {
      double want = x.get(i);
      for (int64_t e = 0; e < 3; ++e) {
        if (static_cast<int64_t>(rows.get(e)) == i / d) want = values.get(e * d + i % d);
      }
      check(out.get(i) == want, entry, "row");
    }
  }
}

void test_kv_cache_write(const KernelEntry& entry) {
  const int64_t t = 6, heads = 2, block_size = 4, c = 10, blocks = 3;
  const Tensor k = random(entry.dtype, {t, heads, c}), v = random(entry.dtype, {t, heads, c});
  const Tensor k_cache = random(entry.dtype, {blocks, heads, block_size, c}),
               v_cache = random(entry.dtype, {blocks, heads, block_size, c});
  const Tensor slots = of(AM_INT64, {3, 4, -1, 11, 0, -5});
  std::vector<double> want_k, want_v;
  for (int64_t i = 0; i < k_cache.size(); ++i) {
    want_k.push_back(k_cache.get(i));
    want_v.push_back(v_cache.get(i));
  }
  for (int64_t i = 0; i < k.size(); ++i) {
    const auto slot = static_cast<int64_t>(slots.get(i / (heads * c)));
    if (slot < 0) continue;
    const int64_t head = i / c % heads;
    const auto at =
        static_cast<size_t>(((slot / block_size * heads + head) * block_size + slot % block_size) * c + i % c);
    want_k[at] = k.get(i);
    want_v[at] = v.get(i);
  }
  run_with_teams(entry, {k.abi(), v.abi(), slots.abi(), k_cache.abi(), v_cache.abi()}, {k_cache, v_cache}, {}, "");
  for (int64_t i = 0; i < k_cache.size(); ++i) {
    check(k_cache.get(i) == want_k[static_cast<size_t>(i)] && v_cache.get(i) == want_v[static_cast<size_t>(i)], entry,
          "cache");
  }
}

}  // namespace

int main() {
  const double infinity = INFINITY, nan = NAN;
  for_each_kernel("silu", [](const KernelEntry& entry) { test_unary(entry, silu, 5e-7); });
  for_each_kernel("relu", [=](const KernelEntry& entry) {
    test_unary(entry, [](double x) { return x > 0.0 ? x : 0.0; }, 0.0);
    test_edges(entry, {-infinity, -1.0, 0.0, infinity, nan}, {0.0, 0.0, 0.0, infinity, nan});
  });
  for_each_kernel("exp", [=](const KernelEntry& entry) {
    test_unary(entry, [](double x) { return std::exp(x); }, 2.4e-7);
    test_edges(entry, {-infinity, -1e4, 0.0, 90.0, 1e4, infinity, nan},
               {0.0, 0.0, 1.0, infinity, infinity, infinity, nan});
  });
  for_each_kernel("log", [=](const KernelEntry& entry) {
    test_unary(entry, [](double x) { return std::log(x); }, 1.2e-7, {}, true);
    test_log_near_one(entry);
    test_edges(entry, {0.0, -0.0, 1.0, -1.0, -infinity, infinity, nan},
               {-infinity, -infinity, 0.0, nan, nan, infinity, nan});
  });
  for_each_kernel("gelu", [=](const KernelEntry& entry) {
    test_unary(entry, gelu, 1e-5, {attr(0)});
    test_unary(entry, approximate_gelu, 1e-5, {attr(1)});
    test_edges(entry, {-1024.0, 0.0, 1024.0, infinity, nan}, {0.0, 0.0, 1024.0, infinity, nan});
  });
  for_each_kernel("sub",
                  [](const KernelEntry& entry) { test_binary(entry, [](double a, double b) { return a - b; }); });
  for_each_kernel("add",
                  [](const KernelEntry& entry) { test_binary(entry, [](double a, double b) { return a + b; }); });
  for_each_kernel("mul",
                  [](const KernelEntry& entry) { test_binary(entry, [](double a, double b) { return a * b; }); });
  for_each_kernel("mul", test_float16_rounding);
  for_each_kernel("sigmoid_mul", [](const KernelEntry& e) {
    test_binary(e, [](double g, double x) { return x / (1.0 + std::exp(-g)); });
  });
  for_each_kernel("silu_mul",
                  [](const KernelEntry& entry) { test_binary(entry, [](double a, double b) { return silu(a) * b; }); });
  for_each_kernel("div", test_div);
  for_each_kernel("rms_norm", test_rms_norm);
  for_each_kernel("add_rms_norm", test_rms_norm);
  for_each_kernel("rope_table", test_rope_table);
  for_each_kernel("rope", test_rope);
  for_each_kernel("embedding", test_rows);
  for_each_kernel("position_embedding", test_rows);
  for_each_kernel("gather_rows", test_rows);
  for_each_kernel("scatter_rows", test_scatter_rows);
  for_each_kernel("kv_cache_write", test_kv_cache_write);
  return report();
}

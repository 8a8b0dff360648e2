// Tests of the matrix operators over quantised weights, and of their packing.
#include <algorithm>
#include <array>
#include <cstdlib>

#include "kernels/quantized_layout.h"
#include "matrix_cases.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

const std::vector<QuantizedLayout> kLayouts = {
    {8, 32, 0, 0}, {4, 32, 0, 0}, {4, 32, 1, 0},  {4, 64, 0, 0}, {4, 128, 1, 0},   {4, 128, 0, 0},     {4, 256, 1, 0},
    {4, 0, 0, 0},  {8, 0, 0, 0},  {8, 64, 1, 0},  {2, 32, 1, 0}, {1, 32, 0, 0},    {4, 96, 0, 0},      {4, 32, 0, 1},
    {8, 64, 0, 1}, {4, 0, 0, 1},  {8, 256, 0, 0}, {8, 96, 0, 0}, {4, 32, 0, 1, 1}, {4, 32, 0, 0, 0, 1}};

std::string name_of(const QuantizedLayout& layout) {
  if (layout.is_mxfp4) return "mxfp4";
  const char* shift = layout.has_super_blocks ? "_k_g"
                      : layout.has_zero_point ? "_zp_g"
                      : layout.has_offset     ? "_offset_g"
                                              : "_g";
  return "int" + std::to_string(layout.bits) + shift + std::to_string(layout.block);
}

// The magnitudes of mxfp4's elements.
constexpr std::array kElements = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};

// A weight's codes, scales, and zero points or offsets as the core passes them; with super-blocks, sub-scales are
// bytes, and so are the scales of mxfp4.
struct Codes {
  QuantizedLayout layout;
  int64_t rows, cols, blocks, super_blocks;
  std::vector<uint8_t> codes, zeros, counts[2];
  std::vector<uint16_t> scales, offsets, super_scales;

  Codes(const QuantizedLayout& layout, int64_t rows, int64_t cols)
      : layout(layout),
        rows(rows),
        cols(cols),
        blocks(layout.block ? (cols + layout.block - 1) / layout.block : 1),
        super_blocks((cols + kSuperBlock - 1) / kSuperBlock) {
    codes.resize(static_cast<size_t>(rows * cols));
    zeros.resize(static_cast<size_t>(layout.has_zero_point ? rows * blocks : 0));
    scales.resize(static_cast<size_t>(rows * blocks));
    offsets.resize(static_cast<size_t>(layout.has_offset ? rows * blocks : 0));
    const bool has_counts = layout.has_super_blocks || layout.is_mxfp4;
    for (auto& each : counts) each.resize(static_cast<size_t>(has_counts ? rows * blocks : 0));
    super_scales.resize(static_cast<size_t>(layout.has_super_blocks ? rows * super_blocks * 2 : 0));
  }

  double value(int64_t row, int64_t col) const {
    const auto at = static_cast<size_t>(row * blocks + (layout.block ? col / layout.block : 0));
    const uint8_t code = codes[static_cast<size_t>(row * cols + col)];
    if (layout.is_mxfp4) return std::ldexp(kElements[code & 7], counts[0][at] - 127) * (code & 8 ? -1 : 1);
    if (layout.has_super_blocks) {
      const auto index = static_cast<size_t>((row * super_blocks + col / kSuperBlock) * 2);
      return from_float16(super_scales[index]) * counts[0][at] * code +
             from_float16(super_scales[index + 1]) * counts[1][at];
    }
    if (layout.has_offset) return from_float16(scales[at]) * code + from_float16(offsets[at]);
    const int difference = layout.has_zero_point ? code - zeros[at] : static_cast<int8_t>(code);
    return from_float16(scales[at]) * difference;
  }
  QuantizedSource source() const {
    if (layout.is_mxfp4) return {nullptr, AM_FLOAT32, codes.data(), counts[0].data(), nullptr};
    if (layout.has_super_blocks) {
      return {nullptr, AM_FLOAT32, codes.data(), counts[0].data(), nullptr, counts[1].data(), super_scales.data()};
    }
    return {nullptr,
            AM_FLOAT32,
            codes.data(),
            scales.data(),
            layout.has_zero_point ? zeros.data() : nullptr,
            layout.has_offset ? offsets.data() : nullptr};
  }
};

Codes random_codes(const QuantizedLayout& layout, int64_t rows, int64_t cols, double scale) {
  Codes result(layout, rows, cols);
  std::uniform_int_distribution<int> code(0, (1 << layout.bits) - 1);
  const int offset = layout.has_zero_point || layout.has_offset || layout.is_mxfp4 ? 0 : 1 << (layout.bits - 1);
  for (uint8_t& each : result.codes) {
    const int drawn = code(generator());
    each = static_cast<uint8_t>(layout.bits == 1 ? 2 * drawn - 1 : drawn - offset);
  }
  for (uint8_t& each : result.zeros) each = static_cast<uint8_t>(code(generator()));
  for (uint16_t& each : result.scales) each = to_float16(scale * normal() / (1 << (layout.bits - 1)));
  for (uint16_t& each : result.offsets) each = to_float16(scale * normal());
  const int middle = 127 - 2 + std::ilogb(scale);
  for (auto& counts : result.counts) {
    for (uint8_t& each : counts)
      each =
          static_cast<uint8_t>(layout.is_mxfp4 ? middle + static_cast<int>(generator()() % 3) - 1 : generator()() % 64);
  }
  for (size_t i = 0; i < result.super_scales.size(); ++i) {
    result.super_scales[i] = to_float16(scale * normal() / (i % 2 ? 64 : 64 << (layout.bits - 1)));
  }
  return result;
}

std::shared_ptr<char> pack_in_parts(const QuantizedLayout& layout, const QuantizedSource& source, int64_t rows,
                                    int64_t cols, int64_t part) {
  const size_t bytes = quantized_bytes(layout, rows, cols);
  std::shared_ptr<char> memory(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), std::free);
  std::memset(memory.get(), 0, bytes);
  for (int64_t row = 0; row < rows; row += part) {
    if (!pack_quantized(layout, source, row, std::min(part, rows - row), cols, memory.get())) return nullptr;
  }
  return memory;
}

// Columns of the least code, of the greatest, or alternating, with the extreme zero points.
Codes extreme_codes(const QuantizedLayout& layout, int64_t rows, int64_t cols) {
  Codes result(layout, rows, cols);
  const int most = (1 << layout.bits) - 1;
  const int least = layout.has_zero_point || layout.has_offset ? 0 : layout.bits == 1 ? -1 : -(1 << (layout.bits - 1));
  const int greatest = layout.bits == 1 ? 1 : least + most;
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t pattern = i / cols % 3;
    const bool is_least = pattern == 0 || (pattern == 1 && i % 2 == 0);
    const int code = layout.is_mxfp4 ? (is_least ? 15 : 7) : is_least ? least : greatest;
    result.codes[static_cast<size_t>(i)] = static_cast<uint8_t>(code);
  }
  for (size_t i = 0; i < result.zeros.size(); ++i) result.zeros[i] = static_cast<uint8_t>(i % 2 ? most : 0);
  for (uint16_t& each : result.scales) each = to_float16(1.0 / 64);
  for (size_t i = 0; i < result.offsets.size(); ++i) result.offsets[i] = to_float16(i % 2 ? 2.0 : -2.0);
  for (auto& counts : result.counts) std::ranges::fill(counts, static_cast<uint8_t>(layout.is_mxfp4 ? 120 : 63));
  for (size_t i = 0; i < result.super_scales.size(); ++i)
    result.super_scales[i] = to_float16(i % 2 ? -2.0 / 63 : 1.0 / 4096);
  return result;
}

Weight packed_weight(const Codes& codes) {
  const int64_t n = codes.rows, k = codes.cols;
  Weight weight{Tensor(AM_FLOAT32, {n, k}), {}};
  weight.values.fill([&](int64_t i) { return codes.value(i / k, i % k); });
  weight.packed = {pack_in_parts(codes.layout, codes.source(), n, k, n), weight.values.abi()};
  weight.packed.tensor.data = weight.packed.memory.get();
  return weight;
}

bool is_one_of(const KernelEntry& entry, std::initializer_list<const char*> variants) {
  return std::ranges::any_of(variants, [&](const char* each) { return std::strcmp(entry.variant, each) == 0; });
}

// Quantises values to int8 with one scale, replaces each by its residual, and returns the largest magnitude.
double take_bytes(std::vector<double>& values) {
  float largest = 0.0f;
  for (double value : values) largest = std::max(largest, static_cast<float>(std::fabs(value)));
  const float inverse = largest == 0.0f ? 0.0f : 127.0f / largest, scale = largest * (1.0f / 127.0f);
  for (double& value : values) {
    value -= static_cast<double>(std::nearbyint(static_cast<float>(value) * inverse)) * static_cast<double>(scale);
  }
  return largest;
}

// Whether a kernel multiplies so many rows by weights rounded to bfloat16.
bool is_dequantized(const KernelEntry& entry, int64_t num_rows) { return is_one_of(entry, {"amx"}) && num_rows > 32; }

Tensor multiplied(const KernelEntry& entry, int64_t num_rows, const Tensor& weight) {
  if (!is_dequantized(entry, num_rows)) return weight;
  const Tensor result(AM_BFLOAT16, {weight.dim(0), weight.dim(1)});
  result.fill([&](int64_t i) { return weight.get(i); });
  return result;
}

// The activations that a kernel computes with: unchanged, or with dynamic int8 quantisation, twice for outlier groups.
Tensor computed_with(const KernelEntry& entry, const Tensor& x) {
  const int64_t k = x.dim(1);
  const Tensor result(AM_FLOAT32, {x.dim(0), k});
  result.fill([&](int64_t i) { return x.get(i); });
  if (is_one_of(entry, {"portable", "neon"}) || is_dequantized(entry, x.dim(0))) return result;
  for (int64_t row = 0; row < x.dim(0); ++row) {
    double squares = 0.0;
    for (int64_t i = 0; i < k; ++i) squares += x.get(row * k + i) * x.get(row * k + i);
    for (int64_t begin = row * k; begin < (row + 1) * k; begin += kGroupK) {
      const int64_t end = std::min(begin + kGroupK, (row + 1) * k);
      std::vector<double> left;
      for (int64_t i = begin; i < end; ++i) left.push_back(x.get(i));
      if (take_bytes(left) > 10.0 * std::sqrt(squares / static_cast<double>(k))) take_bytes(left);
      for (int64_t i = begin; i < end; ++i) result.set(i, x.get(i) - left[static_cast<size_t>(i - begin)]);
    }
  }
  return result;
}

Storage stored_as(const QuantizedLayout& layout) {
  return {[layout](const KernelEntry&, int, int64_t n, int64_t k, double scale) {
            return packed_weight(random_codes(layout, n, k, scale));
          },
          [](const KernelEntry& entry, const Tensor& x) { return computed_with(entry, x); }, name_of(layout),
          multiplied};
}

// Extreme codes and activations must not overflow 16-bit sums.
void test_extremes(const KernelEntry& entry, const QuantizedLayout& layout) {
  const int64_t t = 7, n = 48, k = 192;
  const Weight w = packed_weight(extreme_codes(layout, n, k));
  const Tensor x(entry.dtype, {t, k}), out(entry.dtype, {t, n});
  x.fill([&](int64_t i) { return i / k % 3 == 0 || (i / k % 3 == 1 && i % 2 == 0) ? -1.0 : 1.0; });
  const std::string what = name_of(layout) + " extremes";
  run_with_teams(entry, {x.abi(), w.packed.abi(), Tensor().abi()}, {out}, {}, what);
  if (!is_compared()) return;
  const Matrix computed(computed_with(entry, x)), weight(w.values);
  for (int64_t i = 0; i < t * n; ++i) {
    const Sum sum = dot(computed, i / n, weight, i % n);
    check_close(out.get(i), sum.value, sum.magnitude, entry.dtype, entry, what);
  }
}

// Outliers as in trained models: in one channel of all rows, and in channels of single rows.
void test_outliers(const KernelEntry& entry, const QuantizedLayout& layout) {
  const int64_t t = 29, n = 32, k = 1120;
  const Weight w = packed_weight(random_codes(layout, n, k, 1.0));
  const Tensor x = random(entry.dtype, {t, k}, 1), out(entry.dtype, {t, n});
  for (int64_t row = 0; row < t; ++row) {
    x.set(row * k + 70, 300.0 + static_cast<double>(row));
    if (row % 3 == 0) x.set(row * k + (row * 97 + 500) % k, -400.0);
  }
  const std::string what = name_of(layout) + " outliers";
  run_with_teams(entry, {x.abi(), w.packed.abi(), Tensor().abi()}, {out}, {}, what);
  if (!is_compared()) return;
  const Matrix computed(computed_with(entry, x)), weight(w.values);
  for (int64_t i = 0; i < t * n; ++i) {
    const Sum sum = dot(computed, i / n, weight, i % n);
    check_close(out.get(i), sum.value, sum.magnitude, entry.dtype, entry, what);
  }
}

// Embedding rows equal the values of their codes, rounded once.
void test_embedding(const KernelEntry& entry, const Storage& storage) {
  for (int64_t k : {1, 32, 165, 288}) {
    const Weight table = storage.weight(entry, 1, 35, k, 1.0);
    const Tensor tokens = of(AM_INT32, {34, 0, 15, 16, 15}), out(entry.dtype, {5, k}, 3);
    const Tensor want(entry.dtype, {5, k});
    run_with_teams(entry, {tokens.abi(), table.packed.abi()}, {out}, {}, "embedding");
    want.fill([&](int64_t i) { return table.values.get(static_cast<int64_t>(tokens.get(i / k)) * k + i % k); });
    for (int64_t i = 0; i < out.size(); ++i) check(out.get(i) == want.get(i), entry, "embedding " + storage.name);
  }
}

void check_pack(bool ok, const QuantizedLayout& layout, const char* what) {
  if (ok) return;
  ++num_failures;
  std::printf("FAIL pack %s: %s\n", name_of(layout).c_str(), what);
}

// Packing in parts equals packing at once, and non-finite values are rejected.
void test_packing(const QuantizedLayout& layout) {
  const int64_t rows = 70, cols = 165;
  for (am_dtype dtype : {AM_FLOAT32, AM_BFLOAT16, AM_FLOAT16}) {
    const Tensor values = random(dtype, {rows, cols}, 1);
    QuantizedSource source{values.bytes(), dtype, nullptr, nullptr, nullptr};
    const std::shared_ptr<char> whole = pack_in_parts(layout, source, rows, cols, rows);
    const std::shared_ptr<char> parts = pack_in_parts(layout, source, rows, cols, 32);
    check_pack(std::memcmp(whole.get(), parts.get(), quantized_bytes(layout, rows, cols)) == 0, layout,
               "parts differ from the whole");
    for (double bad : std::vector<double>{INFINITY, -INFINITY, NAN}) {
      const double before = values.get(rows * cols - 1);
      values.set(rows * cols - 1, bad);
      check_pack(pack_in_parts(layout, source, rows, cols, rows) == nullptr, layout, "took what is not finite");
      values.set(rows * cols - 1, before);
    }
  }
}

}  // namespace

int main() {
  // Shortened runs test a third of the formats per kernel, and only the first formats of kernels whose code other runs
  // cover: portable kernels run natively, and i8mm differs from dot product kernels in one instruction.
  size_t index = 0;
  for (const QuantizedLayout& layout : kLayouts) {
    if (!layout.is_mxfp4) test_packing(layout);  // the core quantises to it
    const Storage storage = stored_as(layout);
    for_each_kernel(
        "linear", [&](const KernelEntry& entry) { test_extremes(entry, layout); }, quantized_kernel_table());
    for_each_kernel(
        "linear", [&](const KernelEntry& entry) { test_outliers(entry, layout); }, quantized_kernel_table());
    const am_dtype turn = std::array{AM_FLOAT32, AM_BFLOAT16, AM_FLOAT16}[index++ % 3];
    const auto run_all = [&](const char* operator_name, void (*test)(const KernelEntry&, const Storage&)) {
      const auto run_one = [&](const KernelEntry& entry) {
        const bool is_covered = is_one_of(entry, {"portable", "neon_i8mm"});
        const bool is_left_out = is_quick() && (entry.dtype != turn || (is_covered && index > 3));
        if (!is_left_out) test(entry, storage);
      };
      for_each_kernel(operator_name, run_one, quantized_kernel_table());
    };
    run_all("linear", test_linear);
    run_all("linear", test_rows_are_independent);
    run_all("lm_head", test_linear);
    run_all("embedding", test_embedding);
    run_all("gate_up_silu", test_gate_up_silu);
    run_all("qkv_rope_cache_write", test_qkv);
  }
  return report();
}

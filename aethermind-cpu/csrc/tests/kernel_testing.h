// Test harness of the native kernels: tensors at misaligned addresses, a team of threads, packing, and comparison with
// float64 references.
#ifndef AETHER_CPU_TESTS_KERNEL_TESTING_H
#define AETHER_CPU_TESTS_KERNEL_TESTING_H

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "aethermind/kernel_abi.h"
#include "cpu_features.h"
#include "kernels/quantized_layout.h"
#include "kernels/registry.h"

namespace aether::cpu::testing {

// Kernels of level `amx` run on the model of the tile unit where the CPU has none. Set before anything asks for
// features.
inline const bool uses_tile_model =
    tile_support() != TileSupport::kPresent && setenv("AETHERMIND_CPU_TILES", "model", 1) == 0;

inline int num_failures = 0;
inline std::map<const KernelEntry*, int64_t> num_checks;  // of every tested kernel

inline size_t element_size(am_dtype dtype) {
  return dtype == AM_INT8 || dtype == AM_FLOAT8_E4M3FN ? 1
         : dtype == AM_INT64                           ? 8
         : dtype == AM_BFLOAT16 || dtype == AM_FLOAT16 ? 2
                                                       : 4;
}

inline float from_bfloat16(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}

inline uint16_t to_bfloat16(float value) {
  uint32_t word;
  std::memcpy(&word, &value, 4);
  return static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

inline double from_float16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 0x3ff;
  double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) value = fraction == 0 ? INFINITY : NAN;
  return bits & 0x8000 ? -value : value;
}

// Round to nearest even, by the unit in the last place that the exponent asks for; NaN is one quiet pattern.
inline uint16_t to_float16(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520) return sign | 0x7c00;
  int exponent;
  std::frexp(magnitude, &exponent);
  exponent = magnitude == 0 ? -13 : std::max(exponent, -13);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 11 - exponent)));
  return static_cast<uint16_t>(sign + (exponent + 13) * 0x400 + units);
}

inline double from_e4m3(uint8_t bits) {
  const int exponent = (bits >> 3) & 15, fraction = bits & 7;
  const double value = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  if ((bits & 0x7f) == 0x7f) return NAN;
  return bits & 0x80 ? -value : value;
}

// The same for E4M3, of a finite value.
inline uint8_t to_e4m3(double value) {
  const double magnitude = std::fmin(std::fabs(value), 448);
  int exponent;
  std::frexp(magnitude, &exponent);
  exponent = magnitude == 0 ? -5 : std::max(exponent, -5);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 4 - exponent)));
  return static_cast<uint8_t>((exponent + 5) * 8 + units + (std::signbit(value) ? 0x80 : 0));
}

// A tensor whose memory ends exactly with its last element (for address sanitizers), `misalignment` elements past a
// cache line.
class Tensor {
 public:
  Tensor() = default;
  Tensor(am_dtype dtype, std::vector<int64_t> shape, int misalignment = 0) : dtype_(dtype), shape_(std::move(shape)) {
    size_ = 1;
    for (int64_t dim : shape_) size_ *= dim;
    const size_t offset = static_cast<size_t>(misalignment) * element_size(dtype);
    memory_.reset(static_cast<char*>(
                      ::operator new(offset + static_cast<size_t>(size_) * element_size(dtype), std::align_val_t{64})),
                  Release{});
    data_ = memory_.get() + offset;
    std::memset(data_, 0, static_cast<size_t>(size_) * element_size(dtype));
  }

  int64_t size() const { return size_; }
  am_dtype dtype() const { return dtype_; }
  int64_t dim(int i) const { return shape_[static_cast<size_t>(i)]; }
  char* bytes() const { return data_; }
  size_t num_bytes() const { return static_cast<size_t>(size_) * element_size(dtype_); }

  double get(int64_t i) const {
    switch (dtype_) {
      case AM_BFLOAT16:
        return from_bfloat16(reinterpret_cast<const uint16_t*>(data_)[i]);
      case AM_FLOAT16:
        return from_float16(reinterpret_cast<const uint16_t*>(data_)[i]);
      case AM_INT8:
        return reinterpret_cast<const int8_t*>(data_)[i];
      case AM_FLOAT8_E4M3FN:
        return from_e4m3(reinterpret_cast<const uint8_t*>(data_)[i]);
      case AM_INT32:
        return reinterpret_cast<const int32_t*>(data_)[i];
      case AM_INT64:
        return static_cast<double>(reinterpret_cast<const int64_t*>(data_)[i]);
      default:
        return reinterpret_cast<const float*>(data_)[i];
    }
  }
  void set(int64_t i, double value) const {
    switch (dtype_) {
      case AM_BFLOAT16:
        reinterpret_cast<uint16_t*>(data_)[i] = to_bfloat16(static_cast<float>(value));
        break;
      case AM_FLOAT16:
        reinterpret_cast<uint16_t*>(data_)[i] = to_float16(value);
        break;
      case AM_INT8:
        reinterpret_cast<int8_t*>(data_)[i] = static_cast<int8_t>(value);
        break;
      case AM_FLOAT8_E4M3FN:
        reinterpret_cast<uint8_t*>(data_)[i] = to_e4m3(value);
        break;
      case AM_INT32:
        reinterpret_cast<int32_t*>(data_)[i] = static_cast<int32_t>(value);
        break;
      case AM_INT64:
        reinterpret_cast<int64_t*>(data_)[i] = static_cast<int64_t>(value);
        break;
      default:
        reinterpret_cast<float*>(data_)[i] = static_cast<float>(value);
    }
  }
  void fill(const std::function<double(int64_t)>& value) const {
    for (int64_t i = 0; i < size_; ++i) set(i, value(i));
  }

  am_tensor abi() const {
    am_tensor tensor{};
    if (!data_) return tensor;
    tensor.data = data_;
    tensor.dtype = dtype_;
    tensor.ndim = static_cast<int32_t>(shape_.size());
    for (size_t i = 0; i < shape_.size(); ++i) tensor.shape[i] = shape_[i];
    return tensor;
  }

 private:
  struct Release {
    void operator()(char* memory) const { ::operator delete(memory, std::align_val_t{64}); }
  };
  am_dtype dtype_ = AM_FLOAT32;
  std::vector<int64_t> shape_;
  int64_t size_ = 0;
  std::shared_ptr<char> memory_;
  char* data_ = nullptr;
};

inline std::mt19937& generator() {
  static std::mt19937 engine(7);
  return engine;
}

inline double normal() {
  static std::normal_distribution<double> distribution;
  return distribution(generator());
}

inline Tensor random(am_dtype dtype, std::vector<int64_t> shape, int misalignment = 0, double scale = 1.0) {
  Tensor tensor(dtype, std::move(shape), misalignment);
  tensor.fill([&](int64_t) { return scale * normal(); });
  return tensor;
}

inline Tensor of(am_dtype dtype, const std::vector<double>& values) {
  Tensor tensor(dtype, {static_cast<int64_t>(values.size())});
  tensor.fill([&](int64_t i) { return values[static_cast<size_t>(i)]; });
  return tensor;
}

// The values of a tensor in double, decoded once.
inline std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.size()));
  for (int64_t i = 0; i < tensor.size(); ++i) values[static_cast<size_t>(i)] = tensor.get(i);
  return values;
}

// Packs codes of mxfp4 that depend on the values of a weight [rows, cols], although they do not represent them.
inline void pack_as_mxfp4(const QuantizedLayout& layout, const Tensor& weight, char* packed) {
  const int64_t rows = weight.dim(0), cols = weight.dim(1);
  std::vector<uint8_t> codes(static_cast<size_t>(rows * cols));
  std::vector<uint8_t> exponents(static_cast<size_t>(rows * ((cols + kGroupK - 1) / kGroupK)));
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint8_t>(static_cast<int64_t>(1e3 * weight.get(static_cast<int64_t>(i))) & 15);
  }
  for (size_t i = 0; i < exponents.size(); ++i) {
    exponents[i] = static_cast<uint8_t>(121 + codes[i * codes.size() / exponents.size()] % 3);
  }
  pack_quantized(layout, {nullptr, AM_FLOAT32, codes.data(), exponents.data(), nullptr}, 0, rows, cols, packed);
}

// The kernel's own layout of a weight, as a tensor of the same logical shape.
struct Packed {
  std::shared_ptr<char> memory;
  am_tensor tensor;

  am_tensor abi() const { return tensor; }
};

inline Packed pack(const KernelEntry& entry, int input, const Tensor& weight) {
  for (int i = 0; i < entry.num_packs; ++i) {
    if (entry.packs[i].input != input) continue;
    const PackEntry& layout = *entry.packs[i].pack;
    Packed packed{nullptr, weight.abi()};
    const size_t bytes = layout.packed_bytes(weight.dim(0), weight.dim(1));
    packed.memory.reset(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), std::free);
    layout.pack(weight.bytes(), weight.dim(0), weight.dim(1), packed.memory.get());
    packed.tensor.data = packed.memory.get();
    return packed;
  }
  std::fprintf(stderr, "%s/%s packs no input %d\n", entry.operator_name, entry.variant, input);
  std::abort();
}

inline am_attr attr(int value) { return {.i = value}; }
inline am_attr attr(double value) { return {.f = value}; }

// Runs a kernel on a team of `num_workers` threads. Trailing absent inputs, and attributes of zero, may be left out.
inline void run(const am_kernel& kernel, std::vector<am_tensor> inputs, const std::vector<am_tensor>& outputs,
                std::vector<am_attr> attrs, int num_workers) {
  inputs.resize(kernel.num_inputs, am_tensor{});
  attrs.resize(kernel.num_attrs, am_attr{});
  struct Shared {
    std::atomic<int64_t> ticket{0};
    std::barrier<> barrier;
    std::vector<std::unique_ptr<char, decltype(&std::free)>> scratch = {};
  } shared{.barrier = std::barrier<>(num_workers)};
  const size_t scratch =
      kernel.scratch_bytes ? kernel.scratch_bytes(inputs.data(), outputs.data(), attrs.data(), num_workers) : 0;
  for (int worker = 0; worker < num_workers; ++worker) {
    shared.scratch.emplace_back(static_cast<char*>(std::aligned_alloc(64, (scratch + 127) / 64 * 64)), std::free);
    // NaN, so that reading scratch that was never written shows.
    std::memset(shared.scratch.back().get(), 0xff, scratch);
  }
  const auto work = [&](int worker) {
    const am_team team{worker,
                       num_workers,
                       shared.scratch[static_cast<size_t>(worker)].get(),
                       &shared,
                       [](const am_team* t) { static_cast<Shared*>(t->shared)->barrier.arrive_and_wait(); },
                       [](const am_team* t) { return static_cast<Shared*>(t->shared)->ticket.fetch_add(1); },
                       [](const am_team* t, int32_t other) -> void* {
                         return static_cast<Shared*>(t->shared)->scratch[static_cast<size_t>(other)].get();
                       }};
    kernel.run(inputs.data(), outputs.data(), attrs.data(), &team);
  };
  std::vector<std::thread> threads;
  for (int worker = 1; worker < num_workers; ++worker) threads.emplace_back(work, worker);
  work(0);
  for (std::thread& thread : threads) thread.join();
}

// Whether results are compared with float64 loops. Under an emulator these loops take most of the time, so emulated
// tests with sanitizers only run the kernels (AETHER_TEST_RUN_ONLY); the emulated build without them compares.
inline bool is_compared() { return std::getenv("AETHER_TEST_RUN_ONLY") == nullptr; }

// Without comparison, each run has one team, alternately of one and of three workers. Each kernel's test begins with
// the other size than the one before, so that a shape runs with both over all kernels.
inline int turn = 0, first_turn = 0;

inline std::vector<int> teams() {
  if (is_compared()) return {1, 2, 3};
  return {turn++ % 2 == 0 ? 1 : 3};
}

// Runs with one, two and three workers and checks that all teams write the same bytes to the outputs. Without
// comparison, one team runs, and completing counts as a check.
inline void run_with_teams(const KernelEntry& entry, const std::vector<am_tensor>& inputs,
                           const std::vector<Tensor>& outputs, const std::vector<am_attr>& attrs,
                           const std::string& what) {
  std::vector<am_tensor> abi;
  for (const Tensor& output : outputs) abi.push_back(output.abi());
  std::vector<std::vector<char>> before, first;
  for (const Tensor& output : outputs) before.emplace_back(output.bytes(), output.bytes() + output.num_bytes());
  for (const int num_workers : teams()) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!before[i].empty()) std::memcpy(outputs[i].bytes(), before[i].data(), before[i].size());
    }
    run(*entry.kernel, inputs, abi, attrs, num_workers);
    num_checks[&entry] += is_compared() ? 0 : 1;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (first.size() <= i) {
        first.emplace_back(outputs[i].bytes(), outputs[i].bytes() + outputs[i].num_bytes());
        continue;
      }
      ++num_checks[&entry];
      if (!first[i].empty() && std::memcmp(first[i].data(), outputs[i].bytes(), first[i].size()) != 0) {
        ++num_failures;
        std::printf("FAIL %s/%s %s: %d workers differ from one\n", entry.operator_name, entry.variant, what.c_str(),
                    num_workers);
      }
    }
  }
}

// Whether tests are shortened, for an emulator.
inline bool is_quick() { return std::getenv("AETHER_TEST_QUICK") != nullptr; }

// Calls `test` with every kernel of an operator that this CPU supports, of all instruction sets.
inline void for_each_kernel(const char* operator_name, const std::function<void(const KernelEntry&)>& test,
                            std::span<const KernelEntry> table = kernel_table()) {
  bool is_found = false;
  for (const KernelEntry& entry : table) {
    if (std::strcmp(entry.operator_name, operator_name) != 0 || !entry.is_supported_by_cpu()) continue;
    is_found = true;
    num_checks.try_emplace(&entry, 0);
    turn = first_turn++;
    test(entry);
  }
  if (is_found) return;
  ++num_failures;
  std::printf("FAIL no kernel of %s\n", operator_name);
}

inline void check(bool ok, const KernelEntry& entry, const std::string& what) {
  ++num_checks[&entry];
  if (ok) return;
  ++num_failures;
  std::printf("FAIL %s/%s dtype %d %s\n", entry.operator_name, entry.variant, entry.dtype, what.c_str());
}

// |got - want| against 1e-5 of `magnitude` (the sum of the absolute terms) and, for a 16-bit result, one rounding.
inline void check_close(double got, double want, double magnitude, am_dtype rounded_to, const KernelEntry& entry,
                        const std::string& what) {
  double tolerance = 1e-5 * magnitude + 1e-30;
  if (rounded_to == AM_BFLOAT16) tolerance += std::fabs(want) / 256;
  if (rounded_to == AM_FLOAT16) tolerance += std::fabs(want) / 2048 + 0x1p-25;
  ++num_checks[&entry];
  if (std::fabs(got - want) <= tolerance) return;
  if (rounded_to == AM_FLOAT16 && std::isinf(got) && got * want > 0 && std::fabs(want) + tolerance >= 65520) return;
  if (++num_failures < 50) {
    std::printf("FAIL %s/%s dtype %d %s: got %.9g, want %.9g, tolerance %.3g\n", entry.operator_name, entry.variant,
                entry.dtype, what.c_str(), got, want, tolerance);
  }
}

// Relative rounding error of attention weights: bfloat16 dot products round them to bfloat16.
inline double weight_rounding(const KernelEntry& entry) {
  return entry.dtype == AM_BFLOAT16 && std::strstr(entry.variant, "bf16") != nullptr ? 0x1p-8 : 0.0;
}

// Prints the checks per instruction set. A tested kernel without a check is a failure.
inline int report() {
  struct Variant {
    bool is_supported;
    int num_kernels;
    int64_t num_checks;
  };
  std::map<std::string, Variant> variants;
  std::vector<const KernelEntry*> entries;
  for (const KernelEntry& entry : kernel_table()) entries.push_back(&entry);
  for (const KernelEntry& entry : quantized_kernel_table()) entries.push_back(&entry);
  for (const KernelEntry* each : entries) {
    const KernelEntry& entry = *each;
    Variant& variant = variants.try_emplace(entry.variant, Variant{entry.is_supported_by_cpu(), 0, 0}).first->second;
    const auto tested = num_checks.find(&entry);
    if (tested == num_checks.end()) continue;
    ++variant.num_kernels;
    variant.num_checks += tested->second;
    if (tested->second > 0) continue;
    ++num_failures;
    std::printf("FAIL %s/%s dtype %d has had no check\n", entry.operator_name, entry.variant, entry.dtype);
  }
  for (const auto& [name, variant] : variants) {
    std::printf("%s: %lld checks of %d kernels%s%s\n", name.c_str(), static_cast<long long>(variant.num_checks),
                variant.num_kernels, variant.is_supported ? "" : ", this CPU has it not",
                name == "amx" && uses_tile_model ? ", on the model of the tile unit" : "");
  }
  std::printf("%d failures\n", num_failures);
  return num_failures == 0 && !num_checks.empty() ? 0 : 1;
}

}  // namespace aether::cpu::testing

#endif  // AETHER_CPU_TESTS_KERNEL_TESTING_H

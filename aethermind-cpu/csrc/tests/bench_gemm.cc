// Benchmark of the matrix kernels at the shapes of Qwen2-0.5B, with the machine's limits measured in the same run.
//
//   bench_gemm [num_workers] [variant] [all dtypes: any third argument]
//   bench_gemm [num_workers] quantized [most rows, or =rows] [operator or all] [format]     dense and quantised weights
//
// Rates are those of the fastest of many calls. The last columns are the fraction of the limit (of memory or
// arithmetic, whichever takes longer) of the fastest call and of all calls; on shared cores the two differ most for
// kernels with many instructions.
#include <algorithm>
#include <chrono>
#include <cinttypes>

#include "allocator.h"
#include "kernel_testing.h"
#include "kernels/quantized_layout.h"
#include "machine_limits.h"
#include "parallel.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

struct Shape {
  const char* operator_name;
  int64_t n, k;
};
constexpr Shape kShapes[] = {{"linear", 1152, 896},
                             {"linear", 896, 896},
                             {"linear", 896, 4864},
                             {"gate_up_silu", 4864, 896},
                             {"lm_head", 151936, 896}};
constexpr int64_t kRows[] = {1, 2, 4, 8, 12, 16, 32, 64, 128, 512};

struct Format {
  const char* name;
  QuantizedLayout layout;
};
constexpr Format kFormats[] = {{"int8", {8, 32, 0}},       {"int8_channel", {8, 0, 0}}, {"int4", {4, 32, 0}},
                               {"int4_g128", {4, 128, 0}}, {"int4_zp", {4, 32, 1}},     {"int2", {2, 32, 1}},
                               {"int1", {1, 32, 0}}};
constexpr size_t kColdBytes = size_t{400} << 20;  // calls cycle through so many weights that none is in a cache

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const char* short_name(am_dtype dtype) { return dtype == AM_BFLOAT16 ? "bf16" : dtype == AM_FLOAT16 ? "fp16" : "fp32"; }

struct Seconds {
  double best, mean;
};

struct Call {
  const am_kernel* kernel;
  std::vector<am_tensor> inputs, outputs;
};

Seconds seconds_of(Team& team, const std::vector<Call>& calls) {
  size_t scratch = 0;
  for (const Call& call : calls) {
    scratch = std::max(
        scratch, call.kernel->scratch_bytes(call.inputs.data(), call.outputs.data(), nullptr, team.num_workers()));
  }
  const auto lock = team.acquire();
  team.reserve_scratch(lock, scratch);
  Seconds seconds = {1e9, 0.0};
  const double begin = seconds_now();
  size_t i = 0;
  for (; i < 3 || seconds_now() < begin + 0.3; ++i) {
    const Call& call = calls[i % calls.size()];
    const double start = seconds_now();
    team.run(
        lock,
        [](void* context, const am_team& view) {
          const Call& c = *static_cast<const Call*>(context);
          c.kernel->run(c.inputs.data(), c.outputs.data(), nullptr, &view);
        },
        const_cast<Call*>(&call));
    seconds.best = std::min(seconds.best, seconds_now() - start);
  }
  seconds.mean = (seconds_now() - begin) / static_cast<double>(i);
  return seconds;
}

// `format` is null for dense weights.
void bench(Team& team, const KernelEntry& entry, const Shape& shape, const Limits& limits, const Format* format,
           int64_t min_rows, int64_t max_rows) {
  const int64_t num_weights = std::strcmp(shape.operator_name, "gate_up_silu") == 0 ? 2 : 1;
  const Tensor weight(entry.dtype, {shape.n, shape.k});
  std::uniform_real_distribution<double> distribution(-0.1, 0.1);
  weight.fill([&](int64_t) { return distribution(generator()); });
  // All copies in one block of huge pages, as a model's weights are.
  const size_t packed_bytes = format ? (quantized_bytes(format->layout, shape.n, shape.k) + 63) / 64 * 64
                                     : entry.packs[0].pack->packed_bytes(shape.n, shape.k);
  const size_t weight_bytes = packed_bytes * static_cast<size_t>(num_weights);
  Packed packed{nullptr, weight.abi()};
  if (format) {
    packed.memory.reset(static_cast<char*>(std::aligned_alloc(64, packed_bytes)), std::free);
    const double start = seconds_now();
    pack_quantized(format->layout, {weight.bytes(), entry.dtype, nullptr, nullptr, nullptr}, 0, shape.n, shape.k,
                   packed.memory.get());
    const double rate = static_cast<double>(shape.n * shape.k) / (seconds_now() - start);
    if (shape.n > 100000) std::printf("%-12s packed by one worker: %.0f M values/s\n", format->name, rate / 1e6);
  } else {
    packed = pack(entry, 1, weight);
  }
  const size_t num_copies = std::max<size_t>(1, kColdBytes / weight_bytes) * static_cast<size_t>(num_weights);
  Block memory;
  memory.reserve(num_copies * packed_bytes);
  std::vector<am_tensor> copies(num_copies, packed.abi());
  for (size_t i = 0; i < num_copies; ++i) {
    copies[i].data = static_cast<char*>(memory.address()) + i * packed_bytes;
    std::memcpy(copies[i].data, packed.memory.get(), packed_bytes);
  }
  for (int64_t rows : kRows) {
    if ((shape.n > 100000 && rows > 64) || rows < min_rows || rows > max_rows) continue;
    const Tensor x = random(entry.dtype, {rows, shape.k});
    const Tensor out(num_weights == 1 && shape.n > 100000 ? AM_FLOAT32 : entry.dtype, {rows, shape.n});
    std::vector<Call> calls;
    for (size_t i = 0; i < copies.size(); i += static_cast<size_t>(num_weights)) {
      Call call{entry.kernel, {x.abi(), copies[i]}, {out.abi()}};
      call.inputs.push_back(num_weights == 2 ? copies[i + 1] : Tensor().abi());
      calls.push_back(call);
    }
    const auto [seconds, mean] = seconds_of(team, calls);
    const double bytes_per_s = static_cast<double>(weight_bytes) / seconds;
    const double flops_per_s = 2.0 * static_cast<double>(rows * shape.n * shape.k * num_weights) / seconds;
    const double dense_peak = entry.dtype == AM_BFLOAT16 ? limits.bfloat16_flops_per_s : limits.float32_flops_per_s;
    const double peak = format ? limits.int8_ops_per_s : dense_peak;
    const double fraction = std::max(bytes_per_s / limits.memory_bytes_per_s, flops_per_s / peak);
    std::printf("%-13s %-12s %s T=%-4" PRId64 " N=%-6" PRId64 " K=%-5" PRId64
                " %8.1f us %6.1f GB/s (%3.0f %%) %7.1f GFLOP/s (%3.0f %%) %3.0f %%, of all %3.0f %%\n",
                entry.operator_name, format ? format->name : entry.variant, short_name(entry.dtype), rows, shape.n,
                shape.k, seconds * 1e6, bytes_per_s / 1e9, 100 * bytes_per_s / limits.memory_bytes_per_s,
                flops_per_s / 1e9, 100 * flops_per_s / peak, 100 * fraction, 100 * fraction * seconds / mean);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Team team(argc > 1 ? std::atoi(argv[1]) : 2);
  const char* variant = argc > 2 ? argv[2] : "avx512_bf16";
  if (uses_tile_model && std::strcmp(variant, "amx") == 0) {
    std::fprintf(stderr, "This CPU has no tile unit that this process may use: see tile_support().\n");
    return 1;
  }
  const Limits limits = measure_limits(team);
  std::printf("%d workers: %.1f GB/s, %.0f GFLOP/s bf16, %.0f GFLOP/s fp32, %.0f GOP/s int8\n", team.num_workers(),
              limits.memory_bytes_per_s / 1e9, limits.bfloat16_flops_per_s / 1e9, limits.float32_flops_per_s / 1e9,
              limits.int8_ops_per_s / 1e9);
  const bool is_quantized = std::strcmp(variant, "quantized") == 0;
  const char* rows_argument = is_quantized && argc > 3 ? argv[3] : "1000000";
  const bool is_exact = rows_argument[0] == '=';
  const int64_t max_rows = std::atoi(rows_argument + is_exact), min_rows = is_exact ? max_rows : 1;
  const auto best_of = [](std::span<const KernelEntry> table, const char* name) {
    const KernelEntry* best = nullptr;
    for (const KernelEntry& entry : table) {
      if (std::strcmp(entry.operator_name, name) == 0 && entry.dtype == AM_BFLOAT16 && entry.is_supported_by_cpu() &&
          (!best || entry.priority > best->priority))
        best = &entry;
    }
    return best;
  };
  for (const Shape& shape : kShapes) {
    if (argc > 4 && std::strcmp(argv[4], "all") != 0 && std::strcmp(argv[4], shape.operator_name) != 0) continue;
    if (is_quantized) {
      const auto is_wanted = [&](const char* format) { return argc <= 5 || std::strcmp(argv[5], format) == 0; };
      if (is_wanted("dense"))
        bench(team, *best_of(kernel_table(), shape.operator_name), shape, limits, nullptr, min_rows, max_rows);
      for (const Format& format : kFormats) {
        if (is_wanted(format.name))
          bench(team, *best_of(quantized_kernel_table(), shape.operator_name), shape, limits, &format, min_rows,
                max_rows);
      }
      continue;
    }
    for_each_kernel(shape.operator_name, [&](const KernelEntry& entry) {
      if (std::strcmp(entry.variant, variant) == 0 && (entry.dtype == AM_BFLOAT16 || argc > 3))
        bench(team, entry, shape, limits, nullptr, min_rows, max_rows);
    });
  }
  return 0;
}

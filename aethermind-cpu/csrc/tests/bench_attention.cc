// Benchmark of decode attention over the paged KV cache, one query per sequence, at the shapes of Qwen2-0.5B, with the
// memory bandwidth measured in the same run.
//
//   bench_attention [num_workers] [variant] [num_heads] [num_kv_heads] [head_dim] [kv_dtype: bfloat16, int8] [context]
//                   [sequences]
//
// "Cold" calls cycle through more keys and values than the CPU caches hold, as a model's layers do; "warm" calls find
// them in the CPU caches. ns/key is the time in which one worker computes one key of one KV head.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <numeric>

#include "allocator.h"
#include "kernel_testing.h"
#include "machine_limits.h"
#include "parallel.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

constexpr int64_t kBlockSize = 16;
constexpr size_t kColdBytes = size_t{400} << 20;

struct Heads {
  int64_t num_heads, num_kv_heads, head_dim;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Median seconds of calls that cycle through the inputs.
double median_seconds(Team& team, const am_kernel& kernel, const std::vector<std::vector<am_tensor>>& inputs,
                      const am_tensor& out) {
  const am_attr attributes[] = {attr(0.125), attr(0)};
  const auto lock = team.acquire();
  team.reserve_scratch(lock, kernel.scratch_bytes(inputs[0].data(), &out, attributes, team.num_workers()));
  struct Call {
    const am_kernel& kernel;
    const am_tensor *in, *out;
    const am_attr* attributes;
  };
  std::vector<double> seconds;
  const double begin = seconds_now();
  for (size_t i = 0; i < 3 || seconds_now() < begin + 1.0; ++i) {
    Call call{kernel, inputs[i % inputs.size()].data(), &out, attributes};
    const double start = seconds_now();
    team.run(
        lock,
        [](void* context, const am_team& view) {
          const Call& c = *static_cast<const Call*>(context);
          c.kernel.run(c.in, c.out, c.attributes, &view);
        },
        &call);
    seconds.push_back(seconds_now() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<ptrdiff_t>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}

void bench(Team& team, const KernelEntry& entry, const Heads& heads, int64_t context, int64_t sequences,
           am_dtype kv_dtype, double bytes_per_s) {
  const int64_t blocks_of_sequence = context / kBlockSize, num_blocks = sequences * blocks_of_sequence;
  const std::vector<int64_t> cache_shape = {num_blocks, heads.num_kv_heads, kBlockSize, heads.head_dim};
  const std::vector<int64_t> scale_shape = {num_blocks, heads.num_kv_heads, kBlockSize};
  const Tensor q = random(entry.dtype, {sequences, heads.num_heads, heads.head_dim});
  const Tensor out(entry.dtype, {sequences, heads.num_heads, heads.head_dim});
  const Tensor cu_seqlens(AM_INT32, {sequences + 1}), seqlens(AM_INT32, {sequences});
  cu_seqlens.fill([](int64_t i) { return static_cast<double>(i); });
  seqlens.fill([&](int64_t) { return static_cast<double>(context); });
  const Tensor table(AM_INT32, {sequences, blocks_of_sequence});
  table.fill([](int64_t i) { return static_cast<double>(i); });
  const Tensor keys = random(kv_dtype, cache_shape, 0, kv_dtype == AM_INT8 ? 40.0 : 1.0);
  Tensor scales(AM_FLOAT32, scale_shape);
  scales.fill([](int64_t) { return 0.02; });
  const size_t num_copies = std::max<size_t>(1, kColdBytes / (2 * keys.num_bytes()));
  Block memory;
  memory.reserve(2 * num_copies * keys.num_bytes());
  std::vector<std::vector<am_tensor>> inputs;
  for (size_t i = 0; i < num_copies; ++i) {
    am_tensor kv[2] = {keys.abi(), keys.abi()};
    for (size_t j = 0; j < 2; ++j) {
      kv[j].data = static_cast<char*>(memory.address()) + (2 * i + j) * keys.num_bytes();
      std::memcpy(kv[j].data, keys.bytes(), keys.num_bytes());
    }
    inputs.push_back({q.abi(), kv[0], kv[1], cu_seqlens.abi(), seqlens.abi(), table.abi()});
    if (kv_dtype != entry.dtype) inputs.back().insert(inputs.back().end(), {scales.abi(), scales.abi()});
  }
  const double cold = median_seconds(team, *entry.kernel, inputs, out.abi());
  inputs.resize(1);
  const double warm = median_seconds(team, *entry.kernel, inputs, out.abi());
  const double bytes = 2.0 * static_cast<double>(keys.num_bytes());
  const double keys_of_worker = static_cast<double>(sequences * context * heads.num_kv_heads) / team.num_workers();
  std::printf("%-12s context %-6" PRId64
              " cold %8.1f us %6.1f GB/s (%3.0f %%) %6.1f ns/key; warm %8.1f us %6.1f ns/key\n",
              entry.variant, context, cold * 1e6, bytes / cold / 1e9, 100 * bytes / cold / bytes_per_s,
              cold * 1e9 / keys_of_worker, warm * 1e6, warm * 1e9 / keys_of_worker);
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int index, int fallback) { return argc > index ? std::atoi(argv[index]) : fallback; };
  Team team(number(1, 2));
  const char* variant = argc > 2 ? argv[2] : "avx512_bf16";
  const Heads heads = {number(3, 14), number(4, 2), number(5, 64)};
  const int64_t sequences = number(8, 1);
  const bool is_quantized = argc > 6 && std::strcmp(argv[6], "int8") == 0;
  const Limits limits = measure_limits(team);
  std::printf("%d workers: %.1f GB/s\n", team.num_workers(), limits.memory_bytes_per_s / 1e9);
  const char* name = is_quantized ? "paged_attention_quantized" : "paged_attention";
  std::vector<int64_t> contexts = {128, 512, 2048, 16384};
  if (argc > 7) contexts = {number(7, 0)};
  for (int64_t context : contexts) {
    for_each_kernel(name, [&](const KernelEntry& entry) {
      if (std::strcmp(entry.variant, variant) == 0 && entry.dtype == AM_BFLOAT16)
        bench(team, entry, heads, context, sequences, is_quantized ? AM_INT8 : entry.dtype, limits.memory_bytes_per_s);
    });
  }
  return 0;
}

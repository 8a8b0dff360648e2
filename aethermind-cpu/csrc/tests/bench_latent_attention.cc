// Benchmark of mla_attention at the shapes of DeepSeek-V2-Lite (16 heads, rank 512, rotated keys of 64) in prefill,
// with the machine's limits measured in the same run.
//
//   bench_latent_attention [num_workers] [chunk] [context, or -1 for several] [num_heads]
//
// One sequence computes a chunk of queries behind `context` cached tokens. FLOP are those of the visible pairs of query
// and key. One worker is measured in CPU time, so that other programs disturb it less; the fastest call counts.
#include <time.h>

#include <algorithm>
#include <cinttypes>

#include "kernel_testing.h"
#include "machine_limits.h"
#include "parallel.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

constexpr int64_t kRank = 512, kKeyDim = 576, kBlockSize = 16;

double seconds_now(const Team& team) {
  timespec now;
  clock_gettime(team.num_workers() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void bench(Team& team, const KernelEntry& entry, int64_t num_heads, int64_t chunk, int64_t context) {
  const int64_t num_keys = context + chunk, width = (num_keys + kBlockSize - 1) / kBlockSize;
  const Tensor q = random(entry.dtype, {chunk, num_heads, kKeyDim}), out(entry.dtype, {chunk, num_heads, kRank});
  const Tensor cache = random(entry.dtype, {width, 1, kBlockSize, kKeyDim}), tables(AM_INT32, {1, width});
  tables.fill([](int64_t i) { return static_cast<double>(i); });
  const Tensor cu_seqlens = of(AM_INT32, {0.0, static_cast<double>(chunk)}),
               seqlens = of(AM_INT32, {static_cast<double>(num_keys)});
  const std::vector<am_tensor> inputs = {q.abi(), cache.abi(), cu_seqlens.abi(), seqlens.abi(), tables.abi()};
  const am_attr attributes[] = {attr(static_cast<int>(kRank)), attr(0.07)};
  const am_tensor output = out.abi();
  const auto lock = team.acquire();
  team.reserve_scratch(lock, entry.kernel->scratch_bytes(inputs.data(), &output, attributes, team.num_workers()));
  struct Call {
    const am_kernel& kernel;
    const am_tensor *in, *out;
    const am_attr* attributes;
  } call{*entry.kernel, inputs.data(), &output, attributes};
  double best = 1e9;
  const double begin = seconds_now(team);
  for (int i = 0; i < 2 || seconds_now(team) < begin + 1.0; ++i) {
    const double start = seconds_now(team);
    team.run(
        lock,
        [](void* context, const am_team& view) {
          const Call& c = *static_cast<const Call*>(context);
          c.kernel.run(c.in, c.out, c.attributes, &view);
        },
        &call);
    best = std::min(best, seconds_now(team) - start);
  }
  const double pairs =
      static_cast<double>(chunk) * (static_cast<double>(context) + 0.5 * static_cast<double>(chunk + 1));
  const double flop = 2.0 * static_cast<double>(num_heads * (kKeyDim + kRank)) * pairs;
  const char* dtype = entry.dtype == AM_FLOAT32 ? "float32" : entry.dtype == AM_FLOAT16 ? "float16" : "bfloat16";
  std::printf("%-12s %-9s chunk %-5" PRId64 " context %-6" PRId64 " %9.2f ms %7.1f GFLOP/s\n", entry.variant, dtype,
              chunk, context, best * 1e3, flop / best / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int index, int64_t fallback) { return argc > index ? std::atoll(argv[index]) : fallback; };
  Team team(static_cast<int>(number(1, 1)));
  const int64_t chunk = number(2, 512), only = number(3, -1);
  const Limits limits = measure_limits(team);
  std::printf("%d workers: %.0f GFLOP/s float32, %.0f bfloat16\n", team.num_workers(), limits.float32_flops_per_s / 1e9,
              limits.bfloat16_flops_per_s / 1e9);
  for (int64_t context : only < 0 ? std::vector<int64_t>{0, 4096, 16384} : std::vector<int64_t>{only}) {
    for_each_kernel("mla_attention", [&](const KernelEntry& entry) {
      if (std::strcmp(entry.variant, "portable") != 0) bench(team, entry, number(4, 16), chunk, context);
    });
  }
  return 0;
}

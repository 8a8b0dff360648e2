#include "machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string_view>

#include "allocator.h"
#include "built_levels.h"
#include "cpu_features.h"
#include "machine_limits_probes.h"

namespace aether::cpu {
namespace {

// Passes are short, and the best of many counts: on a busy machine, others take the core away from long ones. There,
// passes may also wait for one another: a measurement ends after a second.
constexpr double kMaxSeconds = 1.0;
constexpr int kMinPasses = 20;

// Several times the last-level cache that one process commonly has for itself. A pass reads a part of it.
constexpr size_t kBufferBytes = size_t{256} << 20;
constexpr size_t kPassBytes = size_t{8} << 20;  // of a worker: about a millisecond
constexpr size_t kChunkBytes = 4096;
constexpr int kNumReadPasses = 160;
// About a millisecond of multiply-adds. The first passes are left out: the clock frequency settles.
constexpr int64_t kNumRounds = 200'000;
constexpr int kNumRatePasses = 50, kNumFirstPasses = 5;

std::atomic<float> sink;

// An instruction set level, and what it measures faster than the levels before it.
struct Level {
  const char* name;
  bool (CpuFeatures::*is_present)() const noexcept;  // null: everywhere
  const Probes* probes;                              // null: nothing
};

constexpr Level kLevels[] = {
    {"portable", nullptr, &kPortableProbes},
#if AETHER_BUILT_AVX2
    {"avx2", &CpuFeatures::has_avx2, &kAvx2Probes},
#endif
#if AETHER_BUILT_AVX2VNNI
    {"avx2_vnni", &CpuFeatures::has_avx2vnni, &kAvx2VnniProbes},
#endif
#if AETHER_BUILT_AVX512
    {"avx512", &CpuFeatures::has_avx512, &kAvx512Probes},
#endif
#if AETHER_BUILT_AVX512VNNI
    {"avx512_vnni", &CpuFeatures::has_avx512vnni, &kAvx512VnniProbes},
#endif
#if AETHER_BUILT_AVX512BF16
    {"avx512_bf16", &CpuFeatures::has_avx512bf16, &kAvx512Bf16Probes},
#endif
#if AETHER_BUILT_AMX
    {"amx", &CpuFeatures::has_amx_hardware, &kAmxProbes},
#endif
#if AETHER_BUILT_NEON
    {"neon", &CpuFeatures::has_neon, &kNeonProbes},
#endif
#if AETHER_BUILT_NEONDOT
    {"neon_dot", &CpuFeatures::has_neondot, &kNeonDotProbes},
#endif
#if AETHER_BUILT_NEONI8MM
    {"neon_i8mm", &CpuFeatures::has_neoni8mm, nullptr},
#endif
};

Probes choose_probes(std::string_view highest_level) {
  Probes probes{};
  for (const Level& level : kLevels) {
    if (level.probes && (!level.is_present || (cpu_features().*level.is_present)())) {
      const Probes& better = *level.probes;
      if (better.read) probes.read = better.read;
      if (better.float32) probes.float32 = better.float32;
      if (better.bfloat16) probes.bfloat16 = better.bfloat16;
      if (better.int8) probes.int8 = better.int8;
    }
    if (highest_level == level.name) break;
  }
  return probes;
}

// Calls `measure(pass)` for up to `num_passes` passes.
template <typename Measure>
void for_each_pass(int num_passes, Measure measure) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  for (int pass = 0; pass < num_passes && (pass < kMinPasses || seconds() < kMaxSeconds); ++pass) measure(pass);
}

// Runs `work(view)` on every worker at once and returns the seconds from the start of the first to the end of the last.
template <typename Work>
double timed(Team& team, const Team::Lock& held, Work work) {
  struct Context {
    Work* work;
    std::chrono::steady_clock::time_point begin, end;
  } context{&work, {}, {}};
  team.run(
      held,
      [](void* pointer, const am_team& view) {
        auto& context = *static_cast<Context*>(pointer);
        view.barrier(&view);
        if (view.worker == 0) context.begin = std::chrono::steady_clock::now();
        (*context.work)(view);
        view.barrier(&view);
        if (view.worker == 0) context.end = std::chrono::steady_clock::now();
      },
      &context);
  return std::chrono::duration<double>(context.end - context.begin).count();
}

double measure_memory(Team& team, const Team::Lock& held, ReadProbe read) {
  Block buffer;
  buffer.reserve(kBufferBytes);
  auto* data = static_cast<std::byte*>(buffer.address());
  const auto share = [](const am_team& view) { return kBufferBytes / view.num_workers / kChunkBytes * kChunkBytes; };
  timed(team, held, [&](const am_team& view) { std::memset(data + view.worker * share(view), 1, share(view)); });
  double best = 0;
  for_each_pass(kNumReadPasses, [&](int pass) {
    std::atomic<size_t> total{0};
    const double seconds = timed(team, held, [&](const am_team& view) {
      const size_t nbytes = std::min(kPassBytes, share(view)), num_parts = share(view) / nbytes;
      const size_t part = static_cast<size_t>(pass) % num_parts;
      sink.store(read(data + view.worker * share(view) + part * nbytes, nbytes), std::memory_order_relaxed);
      total.fetch_add(nbytes, std::memory_order_relaxed);
    });
    best = std::max(best, static_cast<double>(total.load()) / seconds);
  });
  return best;
}

double measure_rate(Team& team, const Team::Lock& held, RateProbe probe) {
  double best = 0;
  for_each_pass(kNumRatePasses, [&](int pass) {
    std::atomic<double> total{0};
    const double seconds = timed(team, held, [&](const am_team&) {
      double num_operations = 0;
      sink.store(probe(kNumRounds, &num_operations), std::memory_order_relaxed);
      total.fetch_add(num_operations, std::memory_order_relaxed);
    });
    if (pass >= kNumFirstPasses) best = std::max(best, total.load() / seconds);
  });
  return best;
}

}  // namespace

Limits measure_limits(Team& team, std::string_view highest_level) {
  const Probes probes = choose_probes(highest_level);
  const Team::Lock held = team.acquire();
  Limits limits;
  limits.memory_bytes_per_s = measure_memory(team, held, probes.read);
  limits.float32_flops_per_s = measure_rate(team, held, probes.float32);
  limits.bfloat16_flops_per_s =
      probes.bfloat16 ? measure_rate(team, held, probes.bfloat16) : limits.float32_flops_per_s;
  limits.int8_ops_per_s = probes.int8 ? measure_rate(team, held, probes.int8) : limits.float32_flops_per_s;
  return limits;
}

}  // namespace aether::cpu

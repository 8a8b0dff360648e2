// Benchmark of the expert products of a mixture at the shapes of Qwen3-30B-A3B (hidden size 2048, 128 experts of width
// 768, 8 a token), with the machine's limits measured in the same run.
//
//   bench_moe [num_workers] [format, all, or none] [number of tokens, or 0 for all]
//
// Experts are chosen so that consecutive calls have other experts: none is in a cache. Bytes are those of the chosen
// experts' weights. The dense product, for comparison, is that of as many rows as an expert has on average by the
// weights of all experts. One worker is measured in CPU time, so that other programs disturb it less.
#include <time.h>

#include <algorithm>
#include <cinttypes>
#include <numeric>

#include "allocator.h"
#include "kernel_testing.h"
#include "kernels/quantized_layout.h"
#include "machine_limits.h"
#include "parallel.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

constexpr int64_t kHidden = 2048, kWidth = 768, kExperts = 128, kChoices = 8;
constexpr int64_t kTokens[] = {1, 8, 64, 512};

struct Format {
  const char* name;
  QuantizedLayout layout;  // 0 bits: dense
};
constexpr Format kFormats[] = {{"bf16", {0, 0, 0}},
                               {"int8", {8, 32, 0}},
                               {"int4", {4, 32, 0}},
                               {"int4_k", {4, 32, 0, 1, 1}},
                               {"mxfp4", {4, 32, 0, 0, 0, 1}}};

bool is_single_worker = false;

// With one worker, the time of this thread on a core.
double seconds_now() {
  timespec now;
  clock_gettime(is_single_worker ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Call {
  const am_kernel* kernel;
  std::vector<am_tensor> inputs, outputs;
  std::vector<am_attr> attrs;
};

// The fastest of many calls in turn.
double seconds_of(Team& team, const std::vector<Call>& calls) {
  size_t scratch = 0;
  for (const Call& call : calls) {
    if (!call.kernel->scratch_bytes) continue;
    scratch = std::max(scratch, call.kernel->scratch_bytes(call.inputs.data(), call.outputs.data(), call.attrs.data(),
                                                           team.num_workers()));
  }
  const auto lock = team.acquire();
  team.reserve_scratch(lock, scratch);
  double best = 1e9;
  const double begin = seconds_now();
  for (size_t i = 0; i < 3 * calls.size() || seconds_now() < begin + 0.5; ++i) {
    const Call& call = calls[i % calls.size()];
    const double start = seconds_now();
    team.run(
        lock,
        [](void* context, const am_team& view) {
          const Call& c = *static_cast<const Call*>(context);
          c.kernel->run(c.inputs.data(), c.outputs.data(), c.attrs.data(), &view);
        },
        const_cast<Call*>(&call));
    best = std::min(best, seconds_now() - start);
  }
  return best;
}

// A stack of experts [experts · n, k] of one expert's values.
struct Stack {
  Block memory;
  am_tensor tensor{};
  size_t bytes = 0;

  Stack(const KernelEntry& entry, const Format& format, int64_t n, int64_t k) {
    const Tensor weight(entry.dtype, {n, k});
    std::uniform_real_distribution<double> distribution(-0.1, 0.1);
    weight.fill([&](int64_t) { return distribution(generator()); });
    const bool is_dense = format.layout.bits == 0;
    const size_t header = is_dense ? 0 : static_cast<size_t>(kHeaderBytes);
    const PackEntry* pack = entry.packs[0].pack;
    const size_t one = is_dense ? pack->packed_bytes(n, k) : quantized_bytes(format.layout, n, k) - header;
    bytes = one * kExperts;
    memory.reserve(header + bytes);
    auto* packed = static_cast<char*>(memory.address());
    if (is_dense) {
      pack->pack(weight.bytes(), n, k, packed);
    } else if (format.layout.is_mxfp4) {
      pack_as_mxfp4(format.layout, weight, packed);
    } else {
      pack_quantized(format.layout, {weight.bytes(), entry.dtype, nullptr, nullptr, nullptr}, 0, n, k, packed);
    }
    for (size_t i = 1; i < kExperts; ++i) std::memcpy(packed + header + i * one, packed + header, one);
    tensor = weight.abi();
    tensor.shape[0] = kExperts * n;
    tensor.data = packed;
  }
};

// Experts of `num_tokens` tokens. Decode steps walk through all experts; prefill has random ones.
Tensor choose(int64_t num_tokens, int64_t call) {
  Tensor ids(AM_INT32, {num_tokens, kChoices});
  std::vector<int32_t> experts(kExperts);
  std::iota(experts.begin(), experts.end(), 0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (num_tokens > 1) std::ranges::shuffle(experts, generator());
    for (int64_t a = 0; a < kChoices; ++a) {
      const int64_t at = num_tokens > 1 ? a : (call * kChoices + a) * 37 % kExperts;
      ids.set(t * kChoices + a, experts[static_cast<size_t>(at)]);
    }
  }
  return ids;
}

const KernelEntry& best_of(const Format& format, const char* name, am_dtype dtype = AM_BFLOAT16) {
  const KernelEntry* best = nullptr;
  for (const KernelEntry& entry : format.layout.bits == 0 ? kernel_table() : quantized_kernel_table()) {
    if (std::strcmp(entry.operator_name, name) == 0 && entry.dtype == dtype && entry.is_supported_by_cpu() &&
        (!best || entry.priority > best->priority))
      best = &entry;
  }
  if (!best) std::abort();
  return *best;
}

// One of the two products, and the dense product of the same weights.
void bench(Team& team, const Format& format, const Limits& limits, bool is_gate_up, int64_t wanted_tokens) {
  const KernelEntry& entry = best_of(format, is_gate_up ? "moe_gate_up_silu" : "moe_linear");
  const KernelEntry& dense = best_of(format, is_gate_up ? "gate_up_silu" : "linear");
  const int64_t n = is_gate_up ? kWidth : kHidden, k = is_gate_up ? kHidden : kWidth;
  const size_t num_weights = is_gate_up ? 2 : 1;
  std::vector<std::unique_ptr<Stack>> stacks;
  for (size_t i = 0; i < num_weights; ++i) stacks.push_back(std::make_unique<Stack>(entry, format, n, k));
  const am_tensor none = Tensor().abi();
  for (int64_t tokens : kTokens) {
    if (wanted_tokens && tokens != wanted_tokens) continue;
    const Tensor x = is_gate_up ? random(entry.dtype, {tokens, k}) : random(entry.dtype, {tokens, kChoices, k});
    const Tensor out(entry.dtype, {tokens, kChoices, n});
    std::vector<Tensor> ids;
    std::vector<Call> calls;
    double num_chosen = 0;
    const int64_t num_calls = tokens == 1 ? kExperts / kChoices : 1;
    for (int64_t i = 0; i < num_calls; ++i) {
      ids.push_back(choose(tokens, i));
      std::vector<bool> is_chosen(kExperts);
      for (int64_t j = 0; j < ids.back().size(); ++j) is_chosen[static_cast<size_t>(ids.back().get(j))] = true;
      num_chosen = static_cast<double>(std::ranges::count(is_chosen, true));
      Call call{entry.kernel, {x.abi(), ids.back().abi()}, {out.abi()}, {attr(static_cast<int>(kExperts))}};
      for (const auto& stack : stacks) call.inputs.push_back(stack->tensor);
      call.inputs.insert(call.inputs.end(), num_weights, none);
      if (is_gate_up) call.attrs.insert(call.attrs.end(), {attr(1.0), attr(0.0), attr(0.0)});
      calls.push_back(call);
    }
    const double seconds = seconds_of(team, calls);
    const double bytes = static_cast<double>(stacks[0]->bytes * num_weights) * num_chosen / kExperts;
    const double flops = 2.0 * static_cast<double>(tokens * kChoices * n * k) * static_cast<double>(num_weights);
    std::printf("%-16s %-6s T=%-4" PRId64 " %4.0f experts %9.1f us %6.1f GB/s (%3.0f %%) %7.1f GFLOP/s",
                entry.operator_name, format.name, tokens, num_chosen, seconds * 1e6, bytes / seconds / 1e9,
                100 * bytes / seconds / limits.memory_bytes_per_s, flops / seconds / 1e9);
    const int64_t rows = std::max<int64_t>(1, tokens * kChoices / kExperts);
    const Tensor dense_x = random(entry.dtype, {rows, k}), dense_out(entry.dtype, {rows, kExperts * n});
    Call call{dense.kernel, {dense_x.abi()}, {dense_out.abi()}, {}};
    for (const auto& stack : stacks) call.inputs.push_back(stack->tensor);
    if (!is_gate_up) call.inputs.push_back(none);
    const double dense_seconds = seconds_of(team, {call});
    const double dense_flops = 2.0 * static_cast<double>(rows * kExperts * n * k) * static_cast<double>(num_weights);
    std::printf("   dense, %2" PRId64 " rows: %6.1f GB/s %7.1f GFLOP/s: %3.0f %%\n", rows,
                static_cast<double>(stacks[0]->bytes * num_weights) / dense_seconds / 1e9,
                dense_flops / dense_seconds / 1e9,
                100 * (tokens * kChoices >= kExperts
                           ? flops / seconds / (dense_flops / dense_seconds)
                           : bytes / seconds * dense_seconds / static_cast<double>(stacks[0]->bytes * num_weights)));
    std::fflush(stdout);
  }
}

// What a mixture costs besides its experts.
void bench_rest(Team& team, int64_t wanted_tokens) {
  const Tensor router = random(AM_BFLOAT16, {kExperts, kHidden});
  for (int64_t tokens : kTokens) {
    if (wanted_tokens && tokens != wanted_tokens) continue;
    const Tensor x = random(AM_BFLOAT16, {tokens, kHidden}), results = random(AM_BFLOAT16, {tokens, kChoices, kHidden});
    const Tensor logits(AM_FLOAT32, {tokens, kExperts}), ids(AM_INT32, {tokens, kChoices});
    const Tensor weights(AM_FLOAT32, {tokens, kChoices}), out(AM_BFLOAT16, {tokens, kHidden});
    const am_tensor none = Tensor().abi();
    const int k = static_cast<int>(kChoices);
    const Call calls[] = {
        {best_of(kFormats[0], "router_logits").kernel, {x.abi(), router.abi(), none}, {logits.abi()}, {}},
        {best_of(kFormats[0], "router_topk", AM_FLOAT32).kernel,
         {logits.abi(), none},
         {ids.abi(), weights.abi()},
         {attr(k), attr(0), attr(1), attr(1), attr(1), attr(1), attr(1.0)}},
        {best_of(kFormats[0], "moe_combine").kernel, {results.abi(), weights.abi()}, {out.abi()}, {}}};
    for (const Call& call : calls)
      std::printf("%-28s T=%-4" PRId64 " %9.1f us\n", call.kernel->name, tokens, seconds_of(team, {call}) * 1e6);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Team team(argc > 1 ? std::atoi(argv[1]) : 2);
  is_single_worker = team.num_workers() == 1;
  const char* wanted = argc > 2 ? argv[2] : "all";
  const int64_t tokens = argc > 3 ? std::atoi(argv[3]) : 0;
  const Limits limits = measure_limits(team);
  std::printf("%d workers: %.1f GB/s, %.0f GFLOP/s bf16, %.0f GOP/s int8\n", team.num_workers(),
              limits.memory_bytes_per_s / 1e9, limits.bfloat16_flops_per_s / 1e9, limits.int8_ops_per_s / 1e9);
  for (const Format& format : kFormats) {
    if (std::strcmp(wanted, "all") != 0 && std::strcmp(wanted, format.name) != 0) continue;
    bench(team, format, limits, true, tokens);
    bench(team, format, limits, false, tokens);
  }
  bench_rest(team, tokens);
  return 0;
}

// The inner loops that machine_limits.cc times. Included by each machine_limits_<level>.cc after a header of csrc/simd.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace aether::cpu::AETHER_ISA {

// Reads four quarters side by side: a core reads more from four streams than from one.
inline float read_rate(const void* data, size_t nbytes) {
  constexpr int kNumStreams = 4, kNumChains = kTileRows * kTilePanels >= 6 ? kNumStreams : 2;
  const auto* x = static_cast<const float*>(data);
  const size_t quarter = nbytes / kNumStreams / sizeof(float);
  Vec sums[kNumChains];
#pragma GCC unroll 4
  for (Vec& sum : sums) sum = zero();
  for (size_t i = 0; i < quarter; i += kLanes) {
#pragma GCC unroll 4
    for (int stream = 0; stream < kNumStreams; ++stream) {
      Vec& sum = sums[stream % kNumChains];
      sum = sum + load(x + stream * quarter + i);
    }
  }
  for (int chain = 1; chain < kNumChains; ++chain) sums[0] = sums[0] + sums[chain];
  return reduce_add(sums[0]);
}

// Runs `step(sum)` on as many accumulators as a register tile has, each a chain of its own. A step is
// `operations_per_lane` operations in each of the sixteen lanes.
template <int NumChains, class V, class StepFn>
AETHER_INLINE float multiply_add_rate(int64_t num_rounds, int operations_per_lane, double* num_operations, V start,
                                      StepFn step) {
  V sums[NumChains];
#pragma GCC unroll 24
  for (V& sum : sums) sum = start;
  __asm__ volatile("" : "+m"(sums));  // hides that they are equal, or the compiler computes only one
  for (int64_t round = 0; round < num_rounds; ++round) {
#pragma GCC unroll 24
    for (V& sum : sums) step(sum);
  }
  *num_operations = static_cast<double>(operations_per_lane * kLanes * NumChains) * static_cast<double>(num_rounds);
  uint32_t lanes[kLanes], bits = 0;
  for (const V& sum : sums) {
    std::memcpy(lanes, &sum, sizeof lanes);
    for (uint32_t lane : lanes) bits += lane;  // every lane, or the compiler removes the others
  }
  return static_cast<float>(bits);
}

inline float float32_rate(int64_t num_rounds, double* num_operations) {
  const Vec factor = set1(0.5f), term = set1(1.0f);
  return multiply_add_rate<kTileRows * kTilePanels>(
      num_rounds, 2, num_operations, zero(),
      [&](Vec& sum) __attribute__((always_inline)) { sum = fma(sum, factor, term); });
}

#ifdef AETHER_HAS_PAIR_DOT
inline float bfloat16_rate(int64_t num_rounds, double* num_operations) {
  BFloat16 ones[2 * kLanes];
  for (BFloat16& one : ones) one.bits = 0x3f80;
  const auto pairs = load_step(ones);
  return multiply_add_rate<kTileRows * kTilePanels>(
      num_rounds, 4, num_operations, zero(),
      [&](Vec& sum) __attribute__((always_inline)) { sum = dot_pairs(pairs, pairs, sum); });
}
#endif

#ifdef AETHER_HAS_INT8_DOT
// If a dot product takes several instructions, the accumulator itself is an operand, so that no product is
// loop-invariant. Products in 16-bit sums, which overflow after a few steps, are widened in every step.
template <class V>
AETHER_INLINE void add_dot(V& sum, const V& x) {
  if constexpr (kMultipliesCodesInPlace) {
    sum = dot_bytes<4>(sum, x, x);
  } else if constexpr (kAccumulatesInInt16<4>) {
    sum = add_words(sum, add_int16_pairs(dot_bytes<4>(V{}, sum, x)));
  } else {
    sum = dot_bytes<4>(sum, sum, x);
  }
}

inline float int8_rate(int64_t num_rounds, double* num_operations) {
  const char ones[4] = {1, 1, 1, 1};
  const IntVec x = broadcast_word(ones);
  return multiply_add_rate<kInt8TileRows>(num_rounds, 8, num_operations, IntVec{},
                                          [&](IntVec& sum) __attribute__((always_inline)) { add_dot(sum, x); });
}
#endif

}  // namespace aether::cpu::AETHER_ISA

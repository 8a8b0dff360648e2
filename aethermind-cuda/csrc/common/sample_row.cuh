// Samples one token of a row of float32 logits under top_k, top_p and min_p.
//
// Each truncation keeps a prefix of the descending order, so it is described by the mass of that prefix; the token is
// the element at which the running mass reaches the random fraction of it (inverse transform sampling). Weights are
// integers, so every method gives the same token: selection among the elements of windows, which are sorted or binned,
// and radix selection, which handles any row.
#pragma once

#include "common/gathered_row.cuh"

namespace aether {

// Samples among the elements of windows; none if they do not contain the cut or the token.
template <class Elements>
__device__ __forceinline__ int sample_elements(const Elements& elements, const Windows& windows, int count,
                                               const SamplingParams& params) {
  const float lowest = from_ordered_bits(min_weighted_bits(windows.largest, params.temperature));
  const bool has_all_with_weight = windows.lower_first <= lowest;
  const bool has_all_above_min_p = params.has_min() && from_ordered_bits(params.min_p_bits) >= windows.lower_first;
  uint64_t kept = elements.weight();
  bool is_found = has_all_with_weight || (has_all_above_min_p && !(params.has_k() && params.has_p()));
  if (params.has_k() && count >= params.top_k) {
    kept = elements.template find_cut<ByCount>(params.top_k).through.weight;
    is_found = kept != 0;
  }
  if (params.has_p() && (is_found || !params.has_k())) {
    const uint64_t total = params.has_k() ? kept : params.total;
    const CutPoint last = elements.template find_cut<ByWeight>(target_reaching(params.top_p, total));
    kept = last.rank != 0 ? last.through.weight : kept;
    is_found = is_found || last.rank != 0;
  }
  if (params.has_min()) {
    const uint64_t above = elements.weight_from(params.min_p_bits);
    kept = min(kept, above);
  }
  if (!is_found || kept == 0) {
    return kNoToken;
  }
  const CutPoint chosen = elements.template find_cut<ByWeight>(target_beyond(params.random, kept));
  return chosen.rank != 0 ? index_of(chosen.rank) : kNoToken;
}

// A function of its own, which builds its weights again: callers keep theirs in registers.
__device__ __noinline__ int sample_by_radix_select(Histogram& histogram, const Powers& powers, const float* logits,
                                                   int size, float largest, const SamplingParams& params) {
  const Row row{logits, size};
  const SoftmaxWeights softmax(powers, SoftmaxScale(params.temperature), largest, weight_bits(size));
  uint64_t all = 0, min_p_weight = 0;
  for_each_logit<kShallowPrefetchVectors>(row.logits, row.size, [&](float value, int) {
    const uint64_t weight = softmax.weight(value);
    all += weight;
    min_p_weight += ordered_bits(value) >= params.min_p_bits ? weight : 0;
  });
  uint64_t kept = block_sum(all);
  min_p_weight = block_sum(min_p_weight);
  if (params.has_k()) {
    const uint64_t top_k = params.top_k;
    const Position last = radix_select_value<ByCount>(histogram, row, softmax, top_k);
    kept = last.before.weight + (top_k - last.before.count) * softmax.weight(from_ordered_bits(last.part));
  }
  if (params.has_p()) {
    const uint64_t target = target_reaching(params.top_p, kept);
    const Position last = radix_select_value<ByWeight>(histogram, row, softmax, target);
    const uint64_t each = softmax.weight(from_ordered_bits(last.part));
    kept = last.before.weight + (target - last.before.weight + each - 1) / each * each;
  }
  if (params.has_min()) {
    kept = min_p_weight < kept ? min_p_weight : kept;
  }
  const uint64_t target = target_beyond(params.random, kept);
  const Position chosen = radix_select_value<ByWeight>(histogram, row, softmax, target);
  const uint64_t each = softmax.weight(from_ordered_bits(chosen.part));
  return tied_index(histogram, row, softmax, chosen.part, (target - chosen.before.weight + each - 1) / each);
}

}  // namespace aether

// sample_tokens: one token a row, by temperature, top_k, top_p, min_p and a random number. A block takes a row.
//
// Every cut keeps the first elements of the descending order, so a cut is how much they weigh together; the token is
// where the running sum of weights reaches its part of that.

#include "common/overlap.cuh"
#include "common/row_candidates.cuh"

namespace aether {

struct Cuts {
  float temperature;
  int top_k;
  float top_p;
  float min_p;
};

// The first index at which the running sum in the order of indices exceeds `share` of the total: each warp sums one of
// 32 parts, and the part that holds it is divided again.
__device__ __forceinline__ int sample_uncut(const Row& row, const Weighing& weighing, double share) {
  __shared__ unsigned long long parts[kWarpSize];
  int begin = 0, end = row.size;
  uint64_t before = 0, target = 0;
  while (true) {
    const int length = (end - begin + kWarpSize - 1) / kWarpSize;
    for (int part = warp_index(); part < kWarpSize; part += static_cast<int>(blockDim.x) / kWarpSize) {
      uint64_t sum = 0;
      const int last = min(end, begin + (part + 1) * length);
      for (int i = begin + part * length + lane_index(); i < last; i += kWarpSize) {
        sum += weighing.weight(row.logits[i]);
      }
      sum = warp_sum(sum);
      if (lane_index() == 0) {
        parts[part] = sum;
      }
    }
    __syncthreads();
    if (target == 0) {
      uint64_t total = 0;
      for (int part = 0; part < kWarpSize; ++part) {
        total += parts[part];
      }
      target = target_beyond(share, total);
    }
    int chosen = 0;
    while (chosen < kWarpSize - 1 && before + parts[chosen] < target) {
      before += parts[chosen++];
    }
    __syncthreads();
    begin += chosen * length;
    end = min(end, begin + length);
    if (length == 1) {
      return begin;
    }
  }
}

// The smallest value that weighs at least `share` of the largest, as ordered bits.
__device__ __forceinline__ uint32_t least_value(const Weighing& weighing, float share) {
  uint32_t low = 0, high = ordered_bits(static_cast<float>(weighing.largest));
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const float value = from_ordered_bits(middle);
    if (value == value && weighing.share(value) >= static_cast<double>(share)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

__device__ __forceinline__ uint64_t target_reaching(float share, uint64_t total) {
  const uint64_t target = static_cast<uint64_t>(ceil(static_cast<double>(share) * static_cast<double>(total)));
  return target < 1 ? 1 : (target < total ? target : total);
}

__device__ __forceinline__ int sample_cut(Histogram& histogram, unsigned long long* candidates, const Row& whole,
                                          const Weighing& weighing, const Cuts& cuts, double share) {
  const uint64_t top_k = cuts.top_k > 0 && cuts.top_k < whole.size ? cuts.top_k : whole.size;
  const uint32_t least = cuts.min_p > 0.0f ? least_value(weighing, cuts.min_p) : 0;
  CoarseHistogram coarse(histogram, static_cast<float>(weighing.largest), cuts.temperature);
  uint64_t kept = coarse.fill(whole, weighing);
  int last_bin;
  if (cuts.top_k > 0) {
    last_bin = coarse.reach<ByCount>(top_k);
  } else if (cuts.top_p < 1.0f) {
    last_bin = coarse.reach<ByWeight>(target_reaching(cuts.top_p, kept));
  } else {
    last_bin = coarse.bin(from_ordered_bits(least));
  }
  const Row row = gathered(whole, coarse, last_bin, candidates);
  __syncthreads();  // the histogram is used again

  if (cuts.top_k > 0) {
    const Position last = descend_values<ByCount>(histogram, row, weighing, top_k);
    kept = last.before.weight + (top_k - last.before.count) * weighing.weight(from_ordered_bits(last.part));
  }
  if (cuts.top_p < 1.0f) {
    const uint64_t target = target_reaching(cuts.top_p, kept);
    const Position last = descend_values<ByWeight>(histogram, row, weighing, target);
    const uint64_t each = weighing.weight(from_ordered_bits(last.part));
    kept = last.before.weight + (target - last.before.weight + each - 1) / each * each;
  }
  if (cuts.min_p > 0.0f) {
    uint64_t sum = 0;
    row.for_each([&](uint64_t rank) {
      sum += static_cast<uint32_t>(rank >> 32) >= least ? weighing.weight(value_of(rank)) : 0;
    });
    sum = block_sum(sum);
    kept = sum < kept ? sum : kept;
  }
  const uint64_t target = target_beyond(share, kept);
  const Position chosen = descend_values<ByWeight>(histogram, row, weighing, target);
  const uint64_t each = weighing.weight(from_ordered_bits(chosen.part));
  return tied_index(histogram, row, weighing, chosen.part, (target - chosen.before.weight + each - 1) / each);
}

}  // namespace aether

extern "C" __global__ void __launch_bounds__(512, 1)
    sample_tokens(int* token_ids, const float* logits, const float* temperature, const int* top_k, const float* top_p,
                  const float* min_p, const float* uniform, int size) {
  aether::begin_kernel();
  __shared__ aether::Histogram histogram;
  __shared__ unsigned long long candidates[aether::kMostCandidates];
  const int64_t index = blockIdx.x;
  const aether::Row row{logits + index * size, size, nullptr, 0};
  const aether::Cuts cuts{temperature[index], top_k[index], top_p[index], min_p[index]};
  const uint64_t first = aether::row_first(row.logits, size);
  int token = aether::index_of(first);
  // A row that is masked as a whole, or has values that are no numbers, has no shares: it gets a token all the same.
  if (cuts.temperature != 0.0f && isfinite(aether::value_of(first))) {
    const aether::Weighing weighing(aether::value_of(first), cuts.temperature, size);
    const bool is_cut = cuts.top_k > 0 || cuts.top_p < 1.0f || cuts.min_p > 0.0f;
    const double share = uniform[index];
    token = is_cut ? aether::sample_cut(histogram, candidates, row, weighing, cuts, share)
                   : aether::sample_uncut(row, weighing, share);
  }
  if (threadIdx.x == 0) {
    token_ids[index] = token;
  }
}

// The sequences of a step that have a state: their rows, and the slot of each one's state.
#pragma once

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

struct StateSlots {
  const int32_t *cu_seqlens, *seqlens, *slots;
  int64_t num_sequences;

  // `in` are cu_seqlens_q, seqlens_k and state_slots.
  explicit StateSlots(const am_tensor* in)
      : cu_seqlens(data<const int32_t>(in[0])),
        seqlens(data<const int32_t>(in[1])),
        slots(data<const int32_t>(in[2])),
        num_sequences(in[2].shape[0]) {}

  AETHER_INLINE Range rows(int64_t s) const { return {cu_seqlens[s], cu_seqlens[s + 1]}; }
  // The state of a new sequence counts as zero, whatever its slot holds.
  AETHER_INLINE bool is_new(int64_t s) const { return seqlens[s] == cu_seqlens[s + 1] - cu_seqlens[s]; }
};

}  // namespace aether::cpu::AETHER_ISA

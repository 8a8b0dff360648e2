// The sequences of a step that have a state (the operators' `cu_seqlens_q`, `seqlens_k` and `state_slots`).
#pragma once

#include "common/types.cuh"

namespace aether {

struct StateSlots {
  const int* cu_seqlens;  // [S + 1]
  const int* seqlens;     // [S]
  const int* slots;       // [S]
};

// The rows of one sequence and the slot of its state. The state of a new sequence counts as zero, whatever is in it.
struct StateSequence {
  int begin;
  int end;
  int64_t slot;
  bool is_new;

  __device__ __forceinline__ StateSequence(const StateSlots& sequences, int index)
      : begin(sequences.cu_seqlens[index]),
        end(sequences.cu_seqlens[index + 1]),
        slot(sequences.slots[index]),
        is_new(sequences.seqlens[index] == end - begin) {}
};

}  // namespace aether

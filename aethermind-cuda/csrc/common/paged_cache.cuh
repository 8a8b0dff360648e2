// Addressing of a paged KV cache [num_blocks, num_kv_heads, block_size, head_dim] by slot and by block table.
#pragma once

#include "common/types.cuh"

namespace aether {

// A row is one head of one slot. Its index addresses scales, and times head_dim, elements. It has 64 bits because a
// layer's cache may exceed 2^31 elements.
__device__ __forceinline__ int64_t cache_row(int64_t block, int offset, int head, int num_kv_heads, int block_size) {
  return (block * num_kv_heads + head) * block_size + offset;
}

__device__ __forceinline__ int64_t row_of_slot(int64_t slot, int head, int num_kv_heads, int block_size) {
  if ((block_size & (block_size - 1)) == 0) {  // avoids a slow 64-bit division
    return cache_row(slot >> (31 - __clz(block_size)), static_cast<int>(slot & (block_size - 1)), head, num_kv_heads,
                     block_size);
  }
  return cache_row(slot / block_size, static_cast<int>(slot % block_size), head, num_kv_heads, block_size);
}

// The rows of one head of one sequence, by key. Block sizes that are powers of two need no division.
struct PagedRows {
  const int* blocks;
  int head;
  int num_kv_heads;
  int block_size;
  int log2_block_size;  // negative for other block sizes

  __device__ __forceinline__ PagedRows(const int* blocks, int head, int num_kv_heads, int block_size)
      : blocks(blocks),
        head(head),
        num_kv_heads(num_kv_heads),
        block_size(block_size),
        log2_block_size((block_size & (block_size - 1)) == 0 ? 31 - __clz(block_size) : -1) {}

  __device__ __forceinline__ int64_t operator()(int key) const {
    const int entry = log2_block_size >= 0 ? key >> log2_block_size : key / block_size;
    return cache_row(blocks[entry], key - entry * block_size, head, num_kv_heads, block_size);
  }
};

}  // namespace aether

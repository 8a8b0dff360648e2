// What kernels of attention compute about places and ranges, for test_paging.py to look at.

#include "common/split_kv.cuh"

extern "C" __global__ void rows_of_keys(int64_t* rows, const int* keys, const int* blocks, int head, int num_kv_heads,
                                        int block_size) {
  rows[threadIdx.x] = aether::PagedRows(blocks, head, num_kv_heads, block_size)(keys[threadIdx.x]);
}

extern "C" __global__ void rows_of_slots(int64_t* rows, const int64_t* slots, int head, int num_kv_heads,
                                         int block_size) {
  rows[threadIdx.x] = aether::row_of_slot(slots[threadIdx.x], head, num_kv_heads, block_size);
}

// Begin and end of every part; blocks with a number from `count` on have none.
extern "C" __global__ void parts_of_splits(int* ranges, int* count, int begin, int end, int num_splits) {
  const aether::KvSplits splits(aether::KeyRange{begin, end}, num_splits);
  const int part = static_cast<int>(threadIdx.x);
  if (part == 0) {
    *count = splits.count;
  }
  const aether::KeyRange range = splits.split(part);
  ranges[2 * part] = range.begin;
  ranges[2 * part + 1] = range.end;
}

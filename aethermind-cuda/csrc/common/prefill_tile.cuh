// The tile scheduler of the prefill kernel: which query rows and which split of their keys a block computes.
//
// The host knows shapes only, so the number of tiles and the split length are derived from the sequence lengths on the
// device, by every warp independently, 32 sequences at a time.
#pragma once

#include "common/split_kv.cuh"

namespace aether {

constexpr int kPrefillRows = 128;

// The tiles of 128 rows of one kv head, of all sequences that are not the decode kernel's.
//
// Where tiles are too few to occupy the GPU, the keys of long ones are split. The split length is the keys of all tiles
// over `max_prefill_splits`, so that splits of the whole batch have about equal length. A sequence's tiles have
// floor(keys / length) splits each, in total at most max_prefill_splits.
struct PrefillBatch {
  const AttentionCall& call;
  int group;
  int split_units;  // split length in units of kSplitGranularity keys

  __device__ __forceinline__ explicit PrefillBatch(const AttentionCall& call)
      : call(call), group(call.group_size()), split_units(1 << 24) {
    if (call.max_prefill_splits == 0) return;
    int total = 0;
    for (int sequence = lane_index(); sequence < call.num_sequences; sequence += kWarpSize) {
      total += num_tiles(sequence) * key_units(sequence);
    }
    total = __reduce_add_sync(kFullWarp, total);
    split_units =
        max(kMinPrefillSplitKeys / kSplitGranularity, (total + call.max_prefill_splits - 1) / call.max_prefill_splits);
  }

  __device__ __forceinline__ int num_tiles(int sequence) const {
    const int rows = (call.cu_seqlens_q[sequence + 1] - call.cu_seqlens_q[sequence]) * group;
    return rows <= call.decode_rows ? 0 : (rows + kPrefillRows - 1) / kPrefillRows;
  }

  // An upper bound of the keys of a tile: its first and last row are fewer than 128 queries apart.
  __device__ __forceinline__ int key_units(int sequence) const {
    const int keys = call.seqlens_k[sequence];
    const bool is_windowed = call.window > 0 && call.window < keys;
    return units_of(is_windowed ? min(keys, call.window + kPrefillRows) : keys);
  }

  __device__ __forceinline__ static int units_of(int keys) {
    return (keys + kSplitGranularity - 1) / kSplitGranularity;
  }

  __device__ __forceinline__ int num_splits(int units) const { return max(1, units / split_units); }

  __device__ __forceinline__ KvSplits splits(KeyRange keys) const {
    const int units = units_of(keys.end - keys.begin), splits = num_splits(units);
    KvSplits result(keys, 1);
    result.length = max(1, (units + splits - 1) / splits) * kSplitGranularity;
    result.count = (units * kSplitGranularity + result.length - 1) / result.length;
    return result;
  }

  // The sequence of an item, the item's index within the sequence, and the number of partials that
  // earlier sequences have. `sequence` is negative where there is no such item.
  struct ItemLocation {
    int sequence;
    int index;
    int first_partial;
  };

  // The location of the `item`-th item. Items are the splits of all tiles, or only the tiles with several splits.
  template <bool kSplitTiles>
  __device__ __forceinline__ ItemLocation find(int item) const {
    int partials = 0;
    for (int base = 0; base < call.num_sequences; base += kWarpSize) {
      const int sequence = base + lane_index();
      const int tiles = sequence < call.num_sequences ? num_tiles(sequence) : 0;
      const int splits = tiles > 0 ? num_splits(key_units(sequence)) : 0;
      const int sequence_partials = splits > 1 ? tiles * splits : 0;
      const int items = kSplitTiles ? (splits > 1 ? tiles : 0) : tiles * splits;
      int items_through = items, partials_through = sequence_partials;  // inclusive prefix sums over lanes
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const int more_items = __shfl_up_sync(kFullWarp, items_through, distance);
        const int more_partials = __shfl_up_sync(kFullWarp, partials_through, distance);
        if (lane_index() >= distance) {
          items_through += more_items;
          partials_through += more_partials;
        }
      }
      const int total = __shfl_sync(kFullWarp, items_through, kWarpSize - 1);
      if (item < total) {
        const int owner = __ffs(static_cast<int>(__ballot_sync(kFullWarp, items_through > item))) - 1;
        const int before = __shfl_sync(kFullWarp, items_through - items, owner);
        const int partials_before = __shfl_sync(kFullWarp, partials_through - sequence_partials, owner);
        return {base + owner, item - before, partials + partials_before};
      }
      item -= total;
      partials += __shfl_sync(kFullWarp, partials_through, kWarpSize - 1);
    }
    return {-1, 0, 0};
  }
};

// 128 rows of one sequence and kv head. Tiles with the most keys come first, so that blocks that start late are short.
struct PrefillTile {
  Queries queries;
  int first_row;
  int group;
  int kv_head;
  int64_t partial;  // index of the tile's first partial, where it is split

  // Returns the `index`-th tile of the sequence at `location`.
  __device__ __forceinline__ static PrefillTile of(const PrefillBatch& batch,
                                                   const PrefillBatch::ItemLocation& location, int index, int kv_head) {
    const int tile = batch.num_tiles(location.sequence) - 1 - index;
    const int max_splits = batch.num_splits(batch.key_units(location.sequence));
    const int64_t first = static_cast<int64_t>(kv_head) * batch.call.max_prefill_splits + location.first_partial;
    return {Queries::of_sequence(batch.call, location.sequence), tile * kPrefillRows, batch.group, kv_head,
            first + index * max_splits};
  }

  __device__ __forceinline__ int num_rows() const { return min(kPrefillRows, queries.count * group - first_row); }

  // The [T, H] index of a row.
  __device__ __forceinline__ int64_t head_of_row(int row, int num_heads) const {
    const int packed = first_row + row;
    return static_cast<int64_t>(queries.first_token + packed / group) * num_heads + kv_head * group + packed % group;
  }

  __device__ __forceinline__ int query_head_of_row(int row) const {
    return kv_head * group + (first_row + row) % group;
  }

  __device__ __forceinline__ int position_of_row(int row) const {
    return queries.first_position + min((first_row + row) / group, queries.count - 1);
  }

  __device__ __forceinline__ KeyRange keys(int window) const {
    return KeyRange::of_positions(position_of_row(0), position_of_row(num_rows() - 1), window);
  }
};

// The work of a block of the prefill kernel: a tile, and all of its keys or one split of them.
struct PrefillWork {
  PrefillTile tile;
  KeyRange keys;
  int num_splits;  // 0: no work
  int64_t partial;

  __device__ __forceinline__ static PrefillWork of(const AttentionCall& call, int item, int kv_head) {
    PrefillWork work{};
    const PrefillBatch batch(call);
    const PrefillBatch::ItemLocation location = batch.find<false>(item);
    if (location.sequence < 0) return work;
    const int num_tiles = batch.num_tiles(location.sequence), split = location.index / num_tiles;
    work.tile = PrefillTile::of(batch, location, location.index % num_tiles, kv_head);
    const KvSplits splits = batch.splits(work.tile.keys(call.window));
    if (split >= splits.count) return work;
    work.keys = splits.split(split);
    work.num_splits = splits.count;
    work.partial = work.tile.partial + split;
    return work;
  }
};

}  // namespace aether

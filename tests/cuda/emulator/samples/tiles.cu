// Sums of the rows of a matrix, whose tiles come by the tensor memory accelerator in two stages. The two blocks of a
// cluster divide the columns. Right, and with one mistake each.
#include "emulation.h"

namespace samples {

using namespace aether::emulation;

enum class Mistake { kNone, kNoWait, kNoRelease, kTooFewBytes, kNoArrival, kNoClusterBarrier, kNoLastBarrier };

constexpr int kRows = 32;
constexpr int kColumns = 64;
constexpr int kStages = 2;

struct alignas(64) Map {
    unsigned char bytes[128];
};

struct Memory {
    uint16_t tiles[kStages][kRows][kColumns];
    uint64_t full[kStages];
    uint64_t empty[kStages];
    float sums[kRows];
};

template <Mistake kMistake>
void sum_rows(float *out, const Map &map, int num_steps) {
    AETHER_DYNAMIC_SHARED(Memory, memory);
    const int lane = lane_id(), begin = cluster_rank() * num_steps;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < kStages; ++stage) {
            initialize_copy_barrier(&memory->full[stage], 1);
            initialize_copy_barrier(&memory->empty[stage], kRows);
        }
    }
    __syncthreads();
    if (warp_id() == 1) {
        for (int step = 0; lane == 0 && step < num_steps; ++step) {
            const int stage = step % kStages, round = step / kStages;
            if (kMistake != Mistake::kNoRelease && round > 0) {
                wait_at_copy_barrier(&memory->empty[stage], (round - 1) % 2 != 0);
            }
            const int nbytes = sizeof memory->tiles[0] / (kMistake == Mistake::kTooFewBytes ? 2 : 1);
            arrive_at_copy_barrier(&memory->full[stage], nbytes);
            copy_tile(memory->tiles[stage], *reinterpret_cast<const TileMap *>(&map), 0, (begin + step) * kColumns,
                      &memory->full[stage]);
        }
    } else {
        float sum = 0;
        for (int step = 0; step < num_steps; ++step) {
            const int stage = step % kStages;
            if (kMistake != Mistake::kNoWait) {
                wait_at_copy_barrier(&memory->full[stage], step / kStages % 2 != 0);
            }
            for (int i = 0; i < kColumns; ++i) {
                sum += bfloat16_value(memory->tiles[stage][lane][(i / 8 ^ lane % 8) * 8 + i % 8]);
            }
            if (kMistake != Mistake::kNoArrival || lane > 0) arrive_at_copy_barrier(&memory->empty[stage], 0);
        }
        memory->sums[lane] = sum;
    }
    if (kMistake != Mistake::kNoClusterBarrier) synchronize_cluster();
    if (warp_id() == 0 && cluster_rank() == 0) {
        float other;
        read_of_rank(&other, &memory->sums[lane], sizeof other, 1);
        out[lane] = memory->sums[lane] + other;
    }
    if (kMistake != Mistake::kNoLastBarrier) synchronize_cluster();
}

}  // namespace samples

#define SUM_ROWS(name, mistake)                                                                                 \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) name(float *out, const samples::Map map, int num_steps) { \
        samples::sum_rows<samples::Mistake::mistake>(out, map, num_steps);                                      \
    }
SUM_ROWS(tile_sums, kNone)
SUM_ROWS(no_wait, kNoWait)
SUM_ROWS(no_release, kNoRelease)
SUM_ROWS(too_few_bytes, kTooFewBytes)
SUM_ROWS(no_arrival, kNoArrival)
SUM_ROWS(no_cluster_barrier, kNoClusterBarrier)
SUM_ROWS(no_last_barrier, kNoLastBarrier)

extern "C" __global__ void no_cluster() { aether::emulation::synchronize_cluster(); }

// A tiled product on tensor cores: out [M, N] = a [M, K] b [N, K]^T, tiles of 16 x 32, through two stages of shared memory.
#include "emulation.h"

namespace samples {

using namespace aether::emulation;

constexpr int kTileM = 16, kTileN = 32, kTileK = 32;
constexpr int kRow = kTileK + 8;  // elements; rows stay at multiples of 16 bytes and spread over the banks

enum class Mistake { kNone, kNoWait, kOneBarrier };

struct Stage {
    uint16_t a[kTileM][kRow];
    uint16_t b[kTileN][kRow];
};

__device__ void fetch(Stage &stage, const uint16_t *a, const uint16_t *b, int rows, int depth, int k) {
    for (int i = threadIdx.x; i < (kTileM + kTileN) * kTileK / 8; i += blockDim.x) {
        const int row = i / (kTileK / 8), column = i % (kTileK / 8) * 8;
        const bool is_a = row < kTileM;
        const int from = is_a ? row : row - kTileM;
        const bool is_there = !is_a || from < rows;
        const uint16_t *source = (is_a ? a : b) + (is_there ? from * depth + k + column : 0);
        copy_async(is_a ? &stage.a[from][column] : &stage.b[from][column], source, 16, is_there ? 16 : 0);
    }
    commit_copies();
}

template <bool kIsBfloat, Mistake kMistake>
__device__ void matmul(float *out, const uint16_t *a, const uint16_t *b, int m, int n, int depth) {
    AETHER_DYNAMIC_SHARED(Stage, stages);
    const int first_row = blockIdx.x * kTileM, first_column = blockIdx.y * kTileN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    a += first_row * depth, b += first_column * depth;
    float c[4] = {};
    fetch(stages[0], a, b, m - first_row, depth, 0);
    for (int k = 0; k < depth; k += kTileK) {
        const int now = k / kTileK % 2;
        if (k + kTileK < depth) {
            fetch(stages[1 - now], a, b, m - first_row, depth, k + kTileK);
        } else {
            commit_copies();
        }
        wait_for_copies(kMistake == Mistake::kNoWait ? 2 : 1);
        __syncthreads();
        for (int step = 0; step < kTileK; step += 16) {
            uint32_t tile_a[4], tile_b[2];
            ldmatrix(tile_a, 4, false, &stages[now].a[lane % 16][step + lane / 16 * 8]);
            ldmatrix(tile_b, 2, false, &stages[now].b[8 * warp + lane % 8][step + lane / 8 % 2 * 8]);
            kIsBfloat ? mma_m16n8k16_bf16(c, tile_a, tile_b, c) : mma_m16n8k16_f16(c, tile_a, tile_b, c);
        }
        if (kMistake != Mistake::kOneBarrier) __syncthreads();
    }
    wait_for_copies(0);
    for (int i = 0; i < 4; ++i) {
        const int row = first_row + lane / 4 + 8 * (i / 2), column = first_column + 8 * warp + lane % 4 * 2 + i % 2;
        if (row < m) out[row * n + column] = c[i];
    }
}

}  // namespace samples

#define MATMUL(name, is_bfloat, mistake)                                                                         \
    extern "C" __global__ void name(float *out, const uint16_t *a, const uint16_t *b, int m, int n, int depth) { \
        samples::matmul<is_bfloat, samples::Mistake::mistake>(out, a, b, m, n, depth);                           \
    }
MATMUL(matmul_float16, false, kNone)
MATMUL(matmul_bfloat16, true, kNone)
MATMUL(matmul_no_wait, false, kNoWait)
MATMUL(matmul_one_barrier, false, kOneBarrier)

// One product of int8 tiles [16, 32] and [8, 32]^T, fragments loaded element by element.
extern "C" __global__ void product_int8(int *out, const int8_t *a, const int8_t *b) {
    const int group = threadIdx.x / 4, member = threadIdx.x % 4;
    uint32_t tile_a[4] = {}, tile_b[2] = {};
    for (int e = 0; e < 4; ++e) {
        for (int r = 0; r < 4; ++r) {
            const int row = group + 8 * (r % 2), column = 4 * member + e + 16 * (r / 2);
            tile_a[r] |= static_cast<uint32_t>(static_cast<uint8_t>(a[row * 32 + column])) << 8 * e;
        }
        for (int r = 0; r < 2; ++r) {
            tile_b[r] |= static_cast<uint32_t>(static_cast<uint8_t>(b[group * 32 + 4 * member + e + 16 * r])) << 8 * e;
        }
    }
    int c[4] = {};
    aether::emulation::mma_m16n8k32_s8(c, tile_a, tile_b, c);
    for (int i = 0; i < 4; ++i) out[(group + 8 * (i / 2)) * 8 + member * 2 + i % 2] = c[i];
}

extern "C" __global__ void transpose_tiles(uint32_t *out, const uint4 *rows) {
    __shared__ uint4 tile[32];
    tile[threadIdx.x] = rows[threadIdx.x];
    __syncwarp();
    uint32_t r[4];
    aether::emulation::ldmatrix(r, 4, true, &tile[threadIdx.x]);
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = r[i];
}

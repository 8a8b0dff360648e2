// Tensor cores and their loads, lane by lane as the PTX ISA (9.7.14.5, "Matrix Fragments for mma") lays out fragments.
//
// In PTX's words, with group = lane / 4 and member = lane % 4, register r, and element e within it:
//   m16n8k16, 16 bit:  a[r][e] is row group + 8 (r % 2),  column 2 member + e + 8 (r / 2);
//                      b[r][e] is row 2 member + e + 8 r, column group;
//   m16n8k32, 8 bit:   a[r][e] is row group + 8 (r % 2),  column 4 member + e + 16 (r / 2);
//                      b[r][e] is row 4 member + e + 16 r, column group;
//   both:              c[i] is row group + 8 (i / 2),     column 2 member + i % 2.
#pragma once

namespace aether::emulation {

template <class Sum>
struct MmaOperands {
    uint32_t a[4];
    uint32_t b[2];
    Sum c[4];
};

// `Element` says how many elements a register has, and what each of them is.
template <class Element, class Sum>
inline void multiply_tiles(LaneOperands *const lanes[kWarpSize]) {
    constexpr int kPerRegister = Element::kPerRegister, kDepth = 8 * kPerRegister;
    typename Element::Type a[16][kDepth], b[kDepth][8];
    for (int lane = 0; lane < kWarpSize; ++lane) {
        const int group = lane / 4, member = lane % 4;
        const auto &mine = *static_cast<const MmaOperands<Sum> *>(lanes[lane]->in);
        for (int e = 0; e < kPerRegister; ++e) {
            for (int r = 0; r < 4; ++r) {
                const int column = kPerRegister * member + e + 4 * kPerRegister * (r / 2);
                a[group + 8 * (r % 2)][column] = Element::value(mine.a[r], e);
            }
            for (int r = 0; r < 2; ++r) {
                b[kPerRegister * member + e + 4 * kPerRegister * r][group] = Element::value(mine.b[r], e);
            }
        }
    }
    for (int lane = 0; lane < kWarpSize; ++lane) {
        const auto &mine = *static_cast<const MmaOperands<Sum> *>(lanes[lane]->in);
        Sum result[4];
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
            typename Element::Total total = mine.c[i];
            for (int k = 0; k < kDepth; ++k) {
                total += static_cast<typename Element::Total>(a[row][k]) * static_cast<typename Element::Total>(b[k][column]);
            }
            result[i] = static_cast<Sum>(total);
        }
        memcpy(lanes[lane]->out, result, sizeof result);
    }
}

// Products of 16-bit floats are exact, and a tensor core keeps more bits in a sum than float32 does.
struct Float16Element {
    using Type = float;
    using Total = double;
    static constexpr int kPerRegister = 2;
    static float value(uint32_t bits, int e) { return float16_value(static_cast<uint16_t>(bits >> 16 * e)); }
};
struct BFloat16Element {
    using Type = float;
    using Total = double;
    static constexpr int kPerRegister = 2;
    static float value(uint32_t bits, int e) { return bfloat16_value(static_cast<uint16_t>(bits >> 16 * e)); }
};
struct Int8Element {
    using Type = int;
    using Total = int;
    static constexpr int kPerRegister = 4;
    static int value(uint32_t bits, int e) { return static_cast<int8_t>(bits >> 8 * e); }
};

template <class Element, class Sum>
AETHER_INSTRUCTION void mma(const char *name, Sum *d, const uint32_t *a, const uint32_t *b, const Sum *c) {
    const MmaOperands<Sum> mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c[0], c[1], c[2], c[3]}};
    warp_operation(name, kFullMask, multiply_tiles<Element, Sum>, {&mine, d, 0});
}

// d = a b + c, of fragments in registers; d may be c.
inline void mma_m16n8k16_f16(float *d, const uint32_t *a, const uint32_t *b, const float *c) {
    mma<Float16Element>("mma.m16n8k16.f16", d, a, b, c);
}
inline void mma_m16n8k16_bf16(float *d, const uint32_t *a, const uint32_t *b, const float *c) {
    mma<BFloat16Element>("mma.m16n8k16.bf16", d, a, b, c);
}
inline void mma_m16n8k32_s8(int *d, const uint32_t *a, const uint32_t *b, const int *c) {
    mma<Int8Element>("mma.m16n8k32.s8", d, a, b, c);
}

struct LoadMatrices {
    const void *row;
    int count;
    bool is_transposed;
    const void *where;
};

// Lane l points at row l % 8 of matrix l / 8. Of each matrix a lane gets elements 2 member and 2 member + 1 of row
// group, or of that column where the matrix is transposed.
inline void load_tiles(LaneOperands *const lanes[kWarpSize]) {
    const auto &first = *static_cast<const LoadMatrices *>(lanes[0]->in);
    for (int matrix = 0; matrix < first.count; ++matrix) {
        uint16_t tile[8][8];
        for (int row = 0; row < 8; ++row) {
            const void *address = static_cast<const LoadMatrices *>(lanes[8 * matrix + row]->in)->row;
            check_alignment(address, 16, "ldmatrix reads a row");
            check_is_shared(address, 16, "ldmatrix reads a row");
            memcpy(tile[row], address, 16);
        }
        for (int lane = 0; lane < kWarpSize; ++lane) {
            const int group = lane / 4, member = lane % 4;
            uint16_t pair[2];
            for (int e = 0; e < 2; ++e) {
                pair[e] = first.is_transposed ? tile[2 * member + e][group] : tile[group][2 * member + e];
            }
            memcpy(static_cast<uint32_t *>(lanes[lane]->out) + matrix, pair, 4);
        }
    }
}

// ldmatrix.m8n8.x1, x2 or x4; where there are fewer than 4 matrices, the addresses of further lanes are ignored.
AETHER_INSTRUCTION void ldmatrix(uint32_t *registers, int count, bool is_transposed, const void *row) {
    const void *where = __builtin_return_address(0);
    if (lane_id() < 8 * count) check_access(row, 16, Access::kRead, where);
    const LoadMatrices mine{row, count, is_transposed, where};
    uint32_t result[4];
    warp_operation(is_transposed ? "ldmatrix.trans" : "ldmatrix", kFullMask, load_tiles, {&mine, result, 0});
    memcpy(registers, result, sizeof(uint32_t) * count);
}

}  // namespace aether::emulation

// Barriers, votes, shuffles, reductions and atomics.
#pragma once

namespace aether::emulation {

template <class T, class Choose>
inline T shuffle(const char *name, unsigned mask, T value, int argument, int width, Choose) {
    static_assert(sizeof(T) <= 8, "a shuffle moves 4 or 8 bytes");
    struct Choice {
        T value;
        int argument, width;
    };
    if (width <= 0 || width > kWarpSize || (width & (width - 1)) != 0) fail("%s with a width of %d", name, width);
    const Choice mine{value, argument, width};
    T result = value;
    const WarpOperation exchange = [](LaneOperands *const lanes[kWarpSize]) {
        for (int lane = 0; lane < kWarpSize; ++lane) {
            if (lanes[lane] == nullptr) continue;
            const auto &choice = *static_cast<const Choice *>(lanes[lane]->in);
            const int source = Choose::source(lane, choice.argument, choice.width);
            if (lanes[source] == nullptr) fail("lane %d shuffles from lane %d, which takes no part", lane, source);
            memcpy(lanes[lane]->out, &static_cast<const Choice *>(lanes[source]->in)->value, sizeof(T));
        }
    };
    warp_operation(name, mask, exchange, {&mine, &result, 0});
    return result;
}

// Where a lane reads, within its segment of `width` lanes; beyond the segment it reads from itself.
struct FromLane {
    static int source(int lane, int from, int width) { return (lane & ~(width - 1)) | (from & (width - 1)); }
};
struct FromBelow {
    static int source(int lane, int by, int width) { return (lane & (width - 1)) < by ? lane : lane - by; }
};
struct FromAbove {
    static int source(int lane, int by, int width) { return (lane & (width - 1)) + by >= width ? lane : lane + by; }
};
struct FromOther {
    static int source(int lane, int by, int width) {
        const int from = lane ^ by;
        return from < (lane & ~(width - 1)) + width ? from : lane;
    }
};

// Every lane gets `combine` over the values of all.
template <class T, class Combine>
inline T combine_lanes(const char *name, unsigned mask, T value, Combine) {
    T result{};
    const WarpOperation operation = [](LaneOperands *const lanes[kWarpSize]) {
        T total{};
        bool is_first = true;
        for (int lane = 0; lane < kWarpSize; ++lane) {
            if (lanes[lane] == nullptr) continue;
            const T value = *static_cast<const T *>(lanes[lane]->in);
            total = is_first ? Combine::begin(value, lane) : Combine::go_on(total, value, lane);
            is_first = false;
        }
        for (int lane = 0; lane < kWarpSize; ++lane) {
            if (lanes[lane] != nullptr) memcpy(lanes[lane]->out, &total, sizeof total);
        }
    };
    warp_operation(name, mask, operation, {&value, &result, 0});
    return result;
}

struct Ballot {
    static unsigned begin(unsigned value, int lane) { return value << lane; }
    static unsigned go_on(unsigned total, unsigned value, int lane) { return total | value << lane; }
};
#define AETHER_COMBINE(Name, expression)                                              \
    struct Name {                                                                     \
        template <class T>                                                            \
        static T begin(T value, int) {                                                \
            return value;                                                             \
        }                                                                             \
        template <class T>                                                            \
        static T go_on(T a, T b, int) {                                               \
            return expression;                                                        \
        }                                                                             \
    };
AETHER_COMBINE(Add, a + b)
AETHER_COMBINE(Min, a < b ? a : b)
AETHER_COMBINE(Max, a > b ? a : b)
AETHER_COMBINE(And, a &b)
AETHER_COMBINE(Or, a | b)
#undef AETHER_COMBINE

// Reads, combines and writes as one; what was there before is returned.
template <class T, class Change>
AETHER_INSTRUCTION T change_atomically(T *address, Change change) {
    check_alignment(address, sizeof(T), "an atomic operation works");
    check_access(address, sizeof(T), Access::kAtomic, __builtin_return_address(0));
    const T old = *address;
    *address = change(old);
    return old;
}

}  // namespace aether::emulation

inline void __syncthreads(aether::emulation::Place place = {}) { aether::emulation::block_barrier(place); }
inline void __syncwarp(unsigned mask = aether::emulation::kFullMask) {
    aether::emulation::warp_operation("__syncwarp", mask, nullptr, {}, true);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}
[[noreturn]] inline void __trap() { aether::emulation::fail("it calls __trap"); }

template <class T>
inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    return aether::emulation::shuffle("__shfl_sync", mask, value, from, width, aether::emulation::FromLane());
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return aether::emulation::shuffle("__shfl_up_sync", mask, value, by, width, aether::emulation::FromBelow());
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return aether::emulation::shuffle("__shfl_down_sync", mask, value, by, width, aether::emulation::FromAbove());
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
    return aether::emulation::shuffle("__shfl_xor_sync", mask, value, by, width, aether::emulation::FromOther());
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return aether::emulation::combine_lanes("__ballot_sync", mask, unsigned{predicate != 0}, aether::emulation::Ballot());
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
#define AETHER_REDUCE(name, type, Combine)                                                         \
    inline type name(unsigned mask, type value) {                                                  \
        return aether::emulation::combine_lanes(#name, mask, value, aether::emulation::Combine()); \
    }
AETHER_REDUCE(__reduce_add_sync, unsigned, Add)
AETHER_REDUCE(__reduce_add_sync, int, Add)
AETHER_REDUCE(__reduce_min_sync, unsigned, Min)
AETHER_REDUCE(__reduce_min_sync, int, Min)
AETHER_REDUCE(__reduce_max_sync, unsigned, Max)
AETHER_REDUCE(__reduce_max_sync, int, Max)
AETHER_REDUCE(__reduce_and_sync, unsigned, And)
AETHER_REDUCE(__reduce_or_sync, unsigned, Or)
#undef AETHER_REDUCE

namespace aether::emulation {

// The block's vote; the two barriers keep the next one out.
inline int count_in_block(int predicate, Place place) {
    thread_local int votes;
    block_barrier(place);
    if (lane_id() == 0 && warp_id() == 0) change_atomically(&votes, [](int) { return 0; });
    block_barrier(place);
    if (predicate) change_atomically(&votes, [](int old) { return old + 1; });
    block_barrier(place);
    return change_atomically(&votes, [](int old) { return old; });
}

}  // namespace aether::emulation

inline int __syncthreads_count(int predicate, aether::emulation::Place place = {}) { return aether::emulation::count_in_block(predicate, place); }
inline int __syncthreads_or(int predicate, aether::emulation::Place place = {}) { return aether::emulation::count_in_block(predicate, place) != 0; }
inline int __syncthreads_and(int predicate, aether::emulation::Place place = {}) { return aether::emulation::count_in_block(!predicate, place) == 0; }

#define AETHER_ATOMIC(name, expression)                                                            \
    template <class T, class Value>                                                                \
    inline T name(T *address, Value value) {                                                       \
        const T b = static_cast<T>(value);                                                         \
        return aether::emulation::change_atomically(address, [b](T a) -> T { return expression; }); \
    }
AETHER_ATOMIC(atomicAdd, a + b)
AETHER_ATOMIC(atomicSub, a - b)
AETHER_ATOMIC(atomicMin, a < b ? a : b)
AETHER_ATOMIC(atomicMax, a > b ? a : b)
AETHER_ATOMIC(atomicAnd, a &b)
AETHER_ATOMIC(atomicOr, a | b)
AETHER_ATOMIC(atomicXor, a ^ b)
AETHER_ATOMIC(atomicExch, (void(a), b))
AETHER_ATOMIC(atomicInc, a >= b ? 0 : a + 1)
#undef AETHER_ATOMIC

template <class T, class Value>
inline T atomicCAS(T *address, Value expected, Value desired) {
    return aether::emulation::change_atomically(address, [=](T old) -> T { return old == T(expected) ? T(desired) : old; });
}

// Loads past the caches.
template <class T>
inline T __ldg(const T *address) {
    return *address;
}
template <class T>
inline T __ldcs(const T *address) {
    return *address;
}
template <class T>
inline T __ldcg(const T *address) {
    return *address;
}
template <class T>
inline void __stcs(T *address, T value) {
    *address = value;
}
template <class T>
inline void __stcg(T *address, T value) {
    *address = value;
}

// What the builder writes at the end of a source: the table of its kernels, with what each of them takes.
#pragma once

#include <type_traits>
#include <utility>

#include "../runtime/api.h"

namespace aether::emulation {

template <class T>
constexpr char kind_of() {
    if constexpr (std::is_pointer_v<T>) {
        return std::is_const_v<std::remove_pointer_t<T>> ? 'c' : 'p';
    } else {
        return std::is_floating_point_v<T> ? 'f' : std::is_integral_v<T> || std::is_enum_v<T> ? 'i' : 's';
    }
}

template <auto kKernel, class = decltype(kKernel)>
struct Description;

template <auto kKernel, class... Parameters>
struct Description<kKernel, void (*)(Parameters...)> {
    static constexpr int count = sizeof...(Parameters);
    static constexpr int sizes[] = {static_cast<int>(sizeof(Parameters))..., 0};
    static constexpr int alignments[] = {static_cast<int>(alignof(Parameters))..., 0};
    static constexpr char kinds[] = {kind_of<Parameters>()..., '\0'};

    __attribute__((no_sanitize("thread", "undefined"))) static void enter(void **arguments) {
        enter(arguments, std::index_sequence_for<Parameters...>());
    }

  private:
    template <size_t... kIndex>
    __attribute__((no_sanitize("thread", "undefined"))) static void enter(void **arguments, std::index_sequence<kIndex...>) {
        kKernel(*static_cast<std::remove_const_t<Parameters> *>(arguments[kIndex])...);
    }
};

template <auto kKernel>
constexpr EmulatorKernel describe(const char *name, int max_threads, int cluster) {
    using It = Description<kKernel>;
    return {name, It::enter, It::count, It::sizes, It::alignments, It::kinds, max_threads, cluster};
}

}  // namespace aether::emulation

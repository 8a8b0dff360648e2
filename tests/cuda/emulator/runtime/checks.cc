// What the compiler calls in checked code. Kernels are compiled with the instrumentation of gcc's thread sanitizer
// (-fsanitize=thread: a call for each access to memory that another thread could see) and of its undefined-behaviour
// sanitizer, but without their runtimes: these functions take their place and judge by the rules of a GPU.
#include "launch.h"

namespace {

using aether::emulation::Access;
using aether::emulation::check_access;

struct SourceLocation {
    const char *file;
    uint32_t line;
    uint32_t column;
};

struct TypeDescriptor {
    uint16_t kind;
    uint16_t info;
    char name[1];
};

struct TypeMismatch {
    SourceLocation location;
    const TypeDescriptor *type;
    unsigned char log_alignment;
    unsigned char check_kind;
};

struct OutOfBounds {
    SourceLocation location;
    const TypeDescriptor *array_type;
};

}  // namespace

#define AETHER_ACCESSES(size)                                                   \
    void __tsan_read##size(void *p) {                                           \
        check_access(p, size, Access::kRead, __builtin_return_address(0));      \
    }                                                                           \
    void __tsan_write##size(void *p) {                                          \
        check_access(p, size, Access::kWrite, __builtin_return_address(0));     \
    }                                                                           \
    void __tsan_unaligned_read##size(void *p) {                                 \
        check_access(p, size, Access::kRead, __builtin_return_address(0));      \
    }                                                                           \
    void __tsan_unaligned_write##size(void *p) {                                \
        check_access(p, size, Access::kWrite, __builtin_return_address(0));     \
    }                                                                           \
    void __tsan_volatile_read##size(void *p) {                                  \
        check_access(p, size, Access::kAtomic, __builtin_return_address(0));    \
    }                                                                           \
    void __tsan_volatile_write##size(void *p) {                                 \
        check_access(p, size, Access::kAtomic, __builtin_return_address(0));    \
    }

extern "C" {
AETHER_ACCESSES(1)
AETHER_ACCESSES(2)
AETHER_ACCESSES(4)
AETHER_ACCESSES(8)
AETHER_ACCESSES(16)

void __tsan_read_range(void *p, size_t nbytes) { check_access(p, nbytes, Access::kRead, __builtin_return_address(0)); }

void __tsan_write_range(void *p, size_t nbytes) {
    check_access(p, nbytes, Access::kWrite, __builtin_return_address(0));
}

void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}

void __ubsan_handle_type_mismatch_v1_abort(const TypeMismatch *data, uintptr_t address) {
    aether::emulation::fail("it uses address 0x%zx as %s at %s:%u, which needs a multiple of %u",
                           static_cast<size_t>(address), data->type->name, data->location.file, data->location.line,
                           1u << data->log_alignment);
}

void __ubsan_handle_out_of_bounds_abort(const OutOfBounds *data, uintptr_t index) {
    aether::emulation::fail("index %ld is outside of %s at %s:%u", static_cast<long>(index), data->array_type->name,
                           data->location.file, data->location.line);
}

void __ubsan_handle_shift_out_of_bounds_abort(const SourceLocation *data, uintptr_t, uintptr_t distance) {
    aether::emulation::fail("it shifts by %ld at %s:%u", static_cast<long>(distance), data->file, data->line);
}

void __ubsan_handle_divrem_overflow_abort(const SourceLocation *data, uintptr_t, uintptr_t) {
    aether::emulation::fail("it divides by zero at %s:%u", data->file, data->line);
}
}

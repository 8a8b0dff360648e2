// Device memory: pages that are closed unless something runs on the device, and the check of every access to them.
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>

#include "api.h"
#include "launch.h"

namespace aether::emulation {
namespace {

struct Allocation {
    size_t nbytes;
    void *pages;
    size_t mapped;
    std::string name;
};

constexpr uint8_t kGarbage = 0xff;  // NaN in every float type, -1 in integers
constexpr size_t kMostGarbage = 8 << 20;

std::map<uintptr_t, Allocation> allocations;
std::pair<uintptr_t, uintptr_t> last_hit;
bool is_open = false;

const size_t kPage = sysconf(_SC_PAGESIZE);

void protect(const Allocation &one, int protection) {
    mprotect(one.pages, one.mapped - kPage, protection);
}

const Allocation *find(uintptr_t address, uintptr_t *begin) {
    auto next = allocations.upper_bound(address);
    if (next == allocations.begin()) return nullptr;
    --next;
    *begin = next->first;
    return &next->second;
}

const char *verb(Access access) { return access == Access::kRead ? "reads" : "writes"; }

// Constants and variables of a kernel's own module lie in its image, its coordinates in ours.
bool is_in_image(uintptr_t address) {
    const auto ours = reinterpret_cast<uintptr_t>(&launch);
    if (address >= ours && address < ours + sizeof launch) return true;
    static uintptr_t last_page = 0;
    const uintptr_t page = address / kPage;
    if (page == last_page) return true;
    Dl_info info;
    if (dladdr(reinterpret_cast<void *>(address), &info) == 0 || info.dli_fbase == nullptr) return false;
    last_page = page;
    return true;
}

[[noreturn]] void report_stray(uintptr_t address, size_t nbytes, Access access, const void *where) {
    const std::string place = place_of(where);
    uintptr_t begin = 0;
    const Allocation *before = find(address, &begin);
    const auto next = allocations.upper_bound(address);
    constexpr uintptr_t kNear = 1 << 20;
    if (before != nullptr && address - begin < before->nbytes + kNear) {
        const auto end = static_cast<long>(address + nbytes - begin - before->nbytes);
        fail("it %s %zu bytes at %s that end %ld bytes beyond the end of `%s` of %zu bytes", verb(access), nbytes,
             place.c_str(), end, before->name.c_str(), before->nbytes);
    }
    if (next != allocations.end() && next->first - address < kNear) {
        fail("it %s %zu bytes at %s that begin %zu bytes before `%s`", verb(access), nbytes, place.c_str(),
             static_cast<size_t>(next->first - address), next->second.name.c_str());
    }
    fail("it %s %zu bytes at %s at address 0x%zx, which is no device memory", verb(access), nbytes, place.c_str(),
         static_cast<size_t>(address));
}

struct sigaction old_segv, old_bus;

void on_fault(int, siginfo_t *info, void *) {
    if (launch.current == nullptr || !is_open) {
        signal(SIGSEGV, SIG_DFL);
        return;
    }
    fail("it uses address %p, which is no device memory", info->si_addr);
}

}  // namespace

void check_access(const void *pointer, size_t nbytes, Access access, const void *where) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (launch.current == nullptr || launch.is_in_operation || is_fiber_stack(address)) return;
    for (const SharedMemory &shared : launch.shared) {
        if (!shared.contains(address)) continue;
        if (address + nbytes > shared.end) {
            fail("it %s %zu bytes at %s that run beyond the end of shared memory", verb(access), nbytes,
                 place_of(where).c_str());
        }
        return note_shared_access(address, nbytes, access, where);
    }
    if (address >= last_hit.first && address + nbytes <= last_hit.second) return;
    uintptr_t begin = 0;
    const Allocation *found = find(address, &begin);
    if (found != nullptr && address + nbytes <= begin + found->nbytes) {
        last_hit = {begin, begin + found->nbytes};
        return;
    }
    if (address >= kPage && is_in_image(address)) return;
    report_stray(address, nbytes, access, where);
}

void check_alignment(const void *pointer, size_t alignment, const char *what) {
    if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
        fail("%s at address %p, which is no multiple of %zu", what, pointer, alignment);
    }
}

void check_is_shared(const void *pointer, size_t nbytes, const char *what) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (!launch.has_shared(address) || !launch.has_shared(address + nbytes - 1)) {
        fail("%s at address %p, which is not in shared memory", what, pointer);
    }
}

void open_memory() {
    for (const auto &[begin, one] : allocations) protect(one, PROT_READ | PROT_WRITE);
    is_open = true;
}

void close_memory() {
    is_open = false;
    for (const auto &[begin, one] : allocations) protect(one, PROT_NONE);
}

void catch_faults(bool on) {
    if (on) {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigaction(SIGSEGV, &action, &old_segv);
        sigaction(SIGBUS, &action, &old_bus);
    } else {
        sigaction(SIGSEGV, &old_segv, nullptr);
        sigaction(SIGBUS, &old_bus, nullptr);
    }
}

std::string place_of(const void *code) {
    Dl_info info;
    if (code == nullptr || dladdr(code, &info) == 0) return "an unknown place";
    char text[512];
    const size_t offset = static_cast<const char *>(code) - static_cast<const char *>(info.dli_fbase) - 1;
    snprintf(text, sizeof text, "<%s+0x%zx>", info.dli_fname, offset);
    return text;
}

}  // namespace aether::emulation

using namespace aether::emulation;

uintptr_t emulator_allocate(size_t nbytes, size_t alignment, const char *name) {
    const std::lock_guard<std::mutex> guard(one_at_a_time);
    const size_t page = kPage;
    const size_t span = (nbytes + alignment - 1) / alignment * alignment;
    const size_t mapped = (span + page - 1) / page * page + page;
    void *pages = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return 0;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(pages) + mapped - page - span;
    const Allocation one{nbytes, pages, mapped, name};
    protect(one, PROT_READ | PROT_WRITE);
    memset(reinterpret_cast<void *>(begin), kGarbage, std::min(nbytes, kMostGarbage));
    if (!is_open) protect(one, PROT_NONE);
    allocations[begin] = one;
    return begin;
}

int emulator_free(uintptr_t address) {
    const std::lock_guard<std::mutex> guard(one_at_a_time);
    const auto found = allocations.find(address);
    if (found == allocations.end()) return 1;
    munmap(found->second.pages, found->second.mapped);
    allocations.erase(found);
    last_hit = {};
    return 0;
}

int emulator_copy(void *destination, const void *source, size_t nbytes, int kind) {
    const std::lock_guard<std::mutex> guard(one_at_a_time);
    const void *device_sides[] = {kind & 1 ? source : nullptr, kind & 2 ? destination : nullptr};
    for (const void *side : device_sides) {
        if (side == nullptr) continue;
        uintptr_t begin = 0;
        const auto address = reinterpret_cast<uintptr_t>(side);
        const Allocation *found = find(address, &begin);
        if (found == nullptr || address + nbytes > begin + found->nbytes) return 1;
        protect(*found, PROT_READ | PROT_WRITE);
    }
    memmove(destination, source, nbytes);
    for (const void *side : device_sides) {
        uintptr_t begin = 0;
        if (side != nullptr && !is_open) protect(*find(reinterpret_cast<uintptr_t>(side), &begin), PROT_NONE);
    }
    return 0;
}

int emulator_fill(uintptr_t address, size_t nbytes, size_t width, uint32_t value) {
    const std::lock_guard<std::mutex> guard(one_at_a_time);
    uintptr_t begin = 0;
    const Allocation *found = find(address, &begin);
    if (found == nullptr || address + nbytes > begin + found->nbytes) return 1;
    protect(*found, PROT_READ | PROT_WRITE);
    for (size_t i = 0; i < nbytes; i += width) memcpy(reinterpret_cast<void *>(address + i), &value, width);
    if (!is_open) protect(*found, PROT_NONE);
    return 0;
}

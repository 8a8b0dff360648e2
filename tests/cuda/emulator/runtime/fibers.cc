// Threads as fibers: a stack each, and a switch that saves what the calling convention says a call preserves.
#include <sys/mman.h>

#include "launch.h"
#if !defined(__x86_64__)
#include <ucontext.h>

#include <map>
#endif

namespace aether::emulation {
namespace {

constexpr size_t kStackBytes = 128 * 1024;
constexpr int kMaxThreads = 1024;
constexpr int kMaxBlocks = 16;  // of a cluster
constexpr size_t kStacks = kMaxThreads * kMaxBlocks;

// Stacks that begin at the same offset of a page would all compete for the same lines of the cache.
constexpr size_t kColourBytes = 192;
constexpr int kColours = 61;

char *stacks = nullptr;

char *top_of_stack(int number) {
    return stacks + (number + 1) * kStackBytes - (number % kColours) * kColourBytes - 256;
}

}  // namespace

void reserve_stacks(int num_threads, int num_blocks) {
    if (num_blocks > kMaxBlocks) {
        fail("a cluster of %d blocks is more than the %d that a device takes", num_blocks, kMaxBlocks);
    }
    if (num_threads > kMaxThreads) {
        fail("a block of %d threads is more than the %d that a device takes", num_threads, kMaxThreads);
    }
    if (stacks == nullptr) {
        void *memory = mmap(nullptr, kStacks * kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        stacks = static_cast<char *>(memory);
    }
}

bool is_fiber_stack(uintptr_t address) {
    const auto begin = reinterpret_cast<uintptr_t>(stacks);
    return address >= begin && address < begin + kStacks * kStackBytes;
}

#if defined(__x86_64__)

// void aether_switch(void **save, void *restore)
asm(R"(
.text
.globl aether_switch
.type aether_switch,@function
aether_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size aether_switch, .-aether_switch
)");
extern "C" void aether_switch(void **save, void *restore);

void prepare_fiber(Thread &thread, void (*body)()) {
    auto top = reinterpret_cast<uintptr_t>(top_of_stack(thread.stack)) & ~uintptr_t{15};
    auto *frame = reinterpret_cast<void **>(top) - 8;
    for (int i = 0; i < 6; ++i) frame[i] = nullptr;
    frame[6] = reinterpret_cast<void *>(body);  // where `ret` goes, with the stack aligned as after a call
    frame[7] = nullptr;
    thread.stack_pointer = frame;
}

void switch_to(Thread &thread) { aether_switch(&launch.scheduler_stack_pointer, thread.stack_pointer); }

void leave_fiber() { aether_switch(&launch.current->stack_pointer, launch.scheduler_stack_pointer); }

#else

namespace {
ucontext_t scheduler;
std::map<int, ucontext_t> contexts;
}  // namespace

void prepare_fiber(Thread &thread, void (*body)()) {
    ucontext_t &context = contexts[thread.stack];
    getcontext(&context);
    context.uc_stack.ss_sp = stacks + thread.stack * kStackBytes;
    context.uc_stack.ss_size = top_of_stack(thread.stack) - static_cast<char *>(context.uc_stack.ss_sp);
    makecontext(&context, body, 0);
}

void switch_to(Thread &thread) { swapcontext(&scheduler, &contexts[thread.stack]); }

void leave_fiber() { swapcontext(&contexts[launch.current->stack], &scheduler); }

#endif

}  // namespace aether::emulation

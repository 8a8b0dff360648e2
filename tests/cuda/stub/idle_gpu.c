/* A libcuda of one H100 whose kernels do nothing: host memory for the device's, and everything else succeeds at once.
 * It rehearses what runs on a card. Environment variables name entry points that go wrong when they are launched:
 * IDLE_GPU_LOSES the device is lost, as after a stray access; IDLE_GPU_HANGS never ends; IDLE_GPU_KILLS the process. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "entry_points.h"

enum { OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NO_BINARY = 209, ILLEGAL_ADDRESS = 700 };
static const size_t kMemory = 4ull << 30;

static char context;
static int error;
static size_t used;

static void* handle(void) { return malloc(8); }

Result cuInit(unsigned flags) { return flags; }
Result cuDriverGetVersion(int* version) { return *version = 13000, 0; }
Result cuDeviceGetCount(int* count) { return *count = 1, 0; }
Result cuDeviceGet(int* device, int index) { return index ? INVALID_DEVICE : (*device = 0); }
Result cuDeviceGetName(char* name, int size, int device) { return strncpy(name, "idle H100", size), device; }
Result cuDeviceTotalMem(size_t* size, int device) { return *size = kMemory, device; }
Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75   ? 9
           : attribute == 76 ? 0
           : attribute == 16 ? 132
           : attribute == 97 ? 227 << 10
           : attribute == 38 ? 50 << 20
                             : 1;
  return device;
}
Result cuDevicePrimaryCtxRetain(void** out, int device) { return *out = &context, device; }
Result cuDevicePrimaryCtxRelease(int device) { return device; }
Result cuCtxSetCurrent(void* given) { return given == &context ? error : 1; }
Result cuCtxSynchronize(void) { return error; }
Result cuDeviceCanAccessPeer(int* answer, int device, int other) { return *answer = device != other, 0; }
Result cuCtxEnablePeerAccess(void* given, unsigned flags) { return given != &context || flags; }

Result cuMemGetInfo(size_t* free, size_t* total) { return *free = kMemory - used, *total = kMemory, error; }
Result cuMemAlloc(Address* out, size_t size) {
  if (error || used + size > kMemory) {
    return error ? error : OUT_OF_MEMORY;
  }
  size_t* memory = NULL; /* at a multiple of 256 bytes, as a card's */
  if (posix_memalign((void**)&memory, 256, size + 512)) {
    return OUT_OF_MEMORY;
  }
  *memory = size;
  used += size;
  return *out = (Address)memory + 256, 0;
}
Result cuMemFree(Address address) {
  size_t* memory = (size_t*)(address - 256);
  used -= *memory;
  return free(memory), error;
}
Result cuMemHostAlloc(void** out, size_t size, unsigned flags) { return (void)flags, *out = malloc(size), error; }
Result cuMemFreeHost(void* address) { return free(address), error; }
Result cuMemcpyAsync(Address to, Address from, size_t size, void* on) {
  return (void)on, memcpy((void*)to, (void*)from, size), error;
}
Result cuMemsetD8Async(Address to, unsigned char byte, size_t size, void* on) {
  return (void)on, memset((void*)to, byte, size), error;
}

Result cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, error; }
Result cuStreamCreateWithPriority(void** out, unsigned flags, int priority) {
  return (void)flags, (void)priority, *out = handle(), error;
}
Result cuStreamDestroy(void* given) { return free(given), error; }
Result cuStreamQuery(void* given) { return (void)given, error; }
Result cuStreamSynchronize(void* given) { return (void)given, error; }
Result cuStreamWaitEvent(void* given, void* other, unsigned flags) {
  return (void)given, (void)other, (void)flags, error;
}
Result cuEventCreate(void** out, unsigned flags) { return (void)flags, *out = handle(), error; }
Result cuEventDestroy(void* given) { return free(given), error; }
Result cuEventRecord(void* given, void* on) { return (void)given, (void)on, error; }
Result cuEventQuery(void* given) { return (void)given, error; }
Result cuEventSynchronize(void* given) { return (void)given, error; }
Result cuEventElapsedTime(float* ms, void* begin, void* end) { return (void)begin, (void)end, *ms = 1.0f, error; }

Result cuModuleLoadData(void** out, const void* image) {
  return *out = handle(), memcmp(image, "\177ELF", 4) ? NO_BINARY : error;
}
Result cuModuleUnload(void* given) { return free(given), error; }
Result cuModuleGetFunction(void** out, void* given, const char* name) {
  return (void)given, *out = strdup(name), error; /* never freed, as little as a driver frees it */
}
Result cuFuncSetAttribute(void* given, int attribute, int value) {
  return (void)given, (void)attribute, (void)value, error;
}

static int is_named(const char* variable, const char* function) {
  const char* named = getenv(variable);
  return named && strcmp(named, function) == 0;
}
Result cuLaunchKernel(void* given, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, void* on, void** parameters, void** extra) {
  (void)shared, (void)on, (void)parameters, (void)extra;
  if (is_named("IDLE_GPU_KILLS", given)) {
    raise(SIGSEGV);
  }
  while (is_named("IDLE_GPU_HANGS", given)) {
    pause();
  }
  if (is_named("IDLE_GPU_LOSES", given)) {
    error = ILLEGAL_ADDRESS;
  }
  return error ? error : !(gx && gy && gz && bx * by * bz <= 1024);
}
typedef struct {
  unsigned grid[3], block[3], shared;
  void* stream;
} Config; /* and what follows, which changes nothing here */
Result cuLaunchKernelEx(const Config* config, void* given, void** parameters, void** extra) {
  const unsigned *grid = config->grid, *block = config->block;
  return cuLaunchKernel(given, grid[0], grid[1], grid[2], block[0], block[1], block[2], config->shared, config->stream,
                        parameters, extra);
}
Result cuOccupancyMaxActiveClusters(int* count, void* given, const Config* config) {
  return (void)given, *count = 132 / config->grid[0], error;
}
Result cuTensorMapEncodeTiled(unsigned char* map, int type, unsigned rank, void* address, const Address* sizes,
                              const Address* strides, const unsigned* box, const unsigned* steps, int interleave,
                              int swizzle, int promotion, int fill) {
  (void)type, (void)rank, (void)address, (void)sizes, (void)strides, (void)box, (void)steps;
  (void)interleave, (void)swizzle, (void)promotion, (void)fill;
  return memset(map, 0, 128), error;
}
Result cuStreamBeginCapture(void* given, int mode) { return (void)given, (void)mode, error; }
Result cuStreamEndCapture(void* given, void** out) { return (void)given, *out = handle(), error; }
Result cuGraphInstantiateWithFlags(void** out, void* given, Address flags) {
  return (void)given, (void)flags, *out = handle(), error;
}
Result cuGraphDestroy(void* given) { return free(given), error; }
Result cuGraphLaunch(void* given, void* on) { return (void)given, (void)on, error; }
Result cuGraphExecDestroy(void* given) { return free(given), error; }

Result cuGetErrorName(Result code, const char** out) {
  *out = code == OUT_OF_MEMORY     ? "CUDA_ERROR_OUT_OF_MEMORY"
         : code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                   : "CUDA_ERROR_SOMETHING";
  return 0;
}
Result cuGetErrorString(Result code, const char** out) { return (void)code, *out = "it went wrong", 0; }

/* A libcuda of one GPU that computes nothing: host memory for the device's, and the newest form of every call. Its
 * only kernel stores its second argument, an int, where its first one points. */
#include <stdlib.h>
#include <string.h>

#include "entry_points.h"

enum { OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NO_BINARY = 209, NOT_READY = 600, ALREADY = 704 };

static char context, stream, event, module, function, graph, executable;
static int is_busy, has_written;

Result cuInit(unsigned flags) { return flags; }
Result cuDriverGetVersion(int* version) { return *version = 13020, 0; }
Result cuDeviceGetCount(int* count) { return *count = 1, 0; }
Result cuDeviceGet(int* device, int index) { return index ? INVALID_DEVICE : (*device = 0); }
Result cuDeviceGetName(char* name, int size, int device) { return strncpy(name, "stub", size), device; }
Result cuDeviceTotalMem(size_t* size, int device) { return *size = 24ull << 30, device; }
Result cuDeviceGetAttribute(int* value, int attribute, int device) { return *value = attribute, device; }
Result cuDevicePrimaryCtxRetain(void** out, int device) { return *out = &context, device; }
Result cuDevicePrimaryCtxRelease(int device) { return device; }
Result cuCtxSetCurrent(void* given) { return given != &context; }
Result cuCtxSynchronize(void) { return 0; }
Result cuDeviceCanAccessPeer(int* answer, int device, int other) { return *answer = device != other, 0; }
Result cuCtxEnablePeerAccess(void* given, unsigned flags) { return given == &context && !flags ? ALREADY : 1; }

Result cuMemGetInfo(size_t* free, size_t* total) { return *free = 23ull << 30, *total = 24ull << 30, 0; }
Result cuMemAlloc(Address* out, size_t size) {
  return size > 1ull << 30 ? OUT_OF_MEMORY : (*out = (Address)malloc(size), 0);
}
Result cuMemFree(Address address) { return free((void*)address), 0; }
Result cuMemHostAlloc(void** out, size_t size, unsigned flags) { return *out = malloc(size), flags != 1; }
Result cuMemFreeHost(void* address) { return free(address), 0; }
Result cuMemcpyAsync(Address to, Address from, size_t size, void* on) {
  return memcpy((void*)to, (void*)from, size), on != &stream;
}
Result cuMemsetD8Async(Address to, unsigned char byte, size_t size, void* on) {
  return memset((void*)to, byte, size), on != &stream;
}

Result cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, 0; }
Result cuStreamCreateWithPriority(void** out, unsigned flags, int priority) {
  return *out = &stream, is_busy = 1, flags != 1 || priority != -3;
}
Result cuStreamDestroy(void* given) { return given != &stream; }
Result cuStreamQuery(void* given) { return given != &stream ? 1 : is_busy-- > 0 ? NOT_READY : 0; }
Result cuStreamSynchronize(void* given) { return given != &stream; }
Result cuStreamWaitEvent(void* given, void* other, unsigned flags) {
  return given != &stream || other != &event || flags;
}
Result cuEventCreate(void** out, unsigned flags) { return *out = &event, flags != 0 && flags != 2; }
Result cuEventDestroy(void* given) { return given != &event; }
Result cuEventRecord(void* given, void* on) { return given != &event || on != &stream; }
Result cuEventQuery(void* given) { return given == &event ? NOT_READY : 1; }
Result cuEventSynchronize(void* given) { return given != &event; }
Result cuEventElapsedTime(float* ms, void* begin, void* end) { return *ms = 1.5f, begin != &event || end != &event; }

Result cuModuleLoadData(void** out, const void* image) {
  return *out = &module, strcmp(image, "cubin") ? NO_BINARY : 0;
}
Result cuModuleUnload(void* given) { return given != &module; }
Result cuModuleGetFunction(void** out, void* given, const char* name) {
  return *out = &function, given != &module ? 1 : strcmp(name, "store") ? NOT_FOUND : 0;
}
Result cuFuncSetAttribute(void* given, int attribute, int value) {
  return given != &function || attribute != 8 || value != 100000;
}
Result cuLaunchKernel(void* given, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, void* on, void** parameters, void** extra) {
  const int is_as_asked = gx == 1 && gy == 2 && gz == 3 && bx == 32 && by == 1 && bz == 1 && shared == 64;
  **(int**)parameters[0] = *(int*)parameters[1];
  has_written = 1;
  return given != &function || !is_as_asked || on != &stream || extra;
}
typedef struct {
  int id;
  int padding;
  union {
    char all[64];
    int is_allowed;
  } value;
} Attribute;
typedef struct {
  unsigned grid[3], block[3], shared;
  void* stream;
  const Attribute* attributes;
  unsigned num_attributes;
} Config;
Result cuLaunchKernelEx(const Config* config, void* given, void** parameters, void** extra) {
  const unsigned *grid = config->grid, *block = config->block;
  const int overlaps =
      config->num_attributes == 1 && config->attributes->id == 6 && config->attributes->value.is_allowed;
  return !overlaps || cuLaunchKernel(given, grid[0], grid[1], grid[2], block[0], block[1], block[2], config->shared,
                                     config->stream, parameters, extra);
}
Result cuOccupancyMaxActiveClusters(int* count, void* given, const Config* config) {
  const int is_as_asked = config->grid[0] == 4 && config->block[0] == 160 && config->shared == 100000;
  return *count = 30, given != &function || !is_as_asked || config->num_attributes;
}
Result cuTensorMapEncodeTiled(unsigned char* map, int type, unsigned rank, void* address, const Address* sizes,
                              const Address* strides, const unsigned* box, const unsigned* steps, int interleave,
                              int swizzle, int promotion, int fill) {
  const int is_matrix = rank == 2 && sizes[0] == 128 && sizes[1] == 300 && strides[0] == 256 && type == 1;
  const int is_tiled = box[0] == 64 && box[1] == 56 && steps[0] == 1 && steps[1] == 1 && swizzle == 3;
  for (int i = 0; i < 128; ++i) map[i] = i;
  return (Address)map % 64 || (Address)address != 1 << 20 || !is_matrix || !is_tiled || interleave || promotion != 3 ||
         fill;
}
Result cuStreamBeginCapture(void* given, int mode) { return given != &stream || mode != 2; }
Result cuStreamEndCapture(void* given, void** out) { return *out = &graph, given != &stream; }
Result cuGraphInstantiateWithFlags(void** out, void* given, Address flags) {
  return *out = &executable, given != &graph || flags;
}
Result cuGraphDestroy(void* given) { return given != &graph; }
Result cuGraphLaunch(void* given, void* on) { return given != &executable || on != &stream || !has_written; }
Result cuGraphExecDestroy(void* given) { return given != &executable; }

Result cuGetErrorName(Result error, const char** out) {
  *out = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_SOMETHING";
  return 0;
}
Result cuGetErrorString(Result error, const char** out) { return *out = error == 2 ? "out of memory" : "something", 0; }

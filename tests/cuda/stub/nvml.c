/* libnvidia-ml with one GPU, for the types of https://docs.nvidia.com/deploy/nvml-api. */
#include <string.h>

typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct gpu *nvmlDevice_t;

enum { kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6 };

static int is_divided;
static const char kGpu[] = "a GPU";

int nvmlInit_v2(void) { return kSuccess; }

void divide(void) { is_divided = 1; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
  if (strcmp(bus_id, "00000001:3b:00.0") != 0) return kNotFound;
  *device = (nvmlDevice_t)kGpu;
  return kSuccess;
}

int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
  if (device != (nvmlDevice_t)kGpu) return kInvalidArgument;
  if (is_divided) return kNotSupported;
  rates->gpu = 37;
  rates->memory = 99;
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  if (device != (nvmlDevice_t)kGpu) return kInvalidArgument;
  *memory = (nvmlMemory_t){80ull << 30, 50ull << 30, 30ull << 30};
  return kSuccess;
}

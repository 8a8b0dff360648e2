/* The native kernel ABI, by which kernels of any package run in a native plan.
 *
 * A kernel is a pure function over caller-owned tensors. It never allocates, logs, parses or throws, and keeps no state
 * between calls. It runs SPMD: every worker of the team calls `run` with the same tensors and its own am_team, and the
 * workers divide the work among themselves, statically by `worker` or dynamically by `claim`. The plan runner puts a
 * barrier after each step, so a kernel needs one only between its own phases. Results must not depend on the number of
 * workers.
 *
 * A Python package passes a kernel as a PyCapsule named AM_KERNEL_CAPSULE that points to an am_kernel with static
 * storage. Inputs, outputs and attributes are in the order of the operator's schema. An output may share memory with an
 * input only where the schema says so (`alias`, `inplace`).
 */
#ifndef AETHERMIND_KERNEL_ABI_H
#define AETHERMIND_KERNEL_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AM_KERNEL_ABI_VERSION 1u
#define AM_KERNEL_CAPSULE "aethermind.kernel.v1"
#define AM_MAX_DIMS 6

/* Values equal DType.code in aethermind.hal.dtype. */
typedef enum am_dtype {
  AM_FLOAT32 = 0,
  AM_FLOAT16 = 1,
  AM_BFLOAT16 = 2,
  AM_FLOAT64 = 3,
  AM_INT8 = 4,
  AM_UINT8 = 5,
  AM_INT32 = 6,
  AM_INT64 = 7,
  AM_BOOL = 8,
  AM_FLOAT8_E4M3FN = 9,
} am_dtype;

/* A row-major contiguous tensor. A packed weight has its logical shape, and `data` points to the kernel's own packed
 * layout; a weight in a weight format without a packing of the kernel is passed as AM_FLOAT32. An absent optional input
 * has data == NULL and ndim == 0; a tensor with a zero in its shape may have any data. */
typedef struct am_tensor {
  void* data;
  int32_t dtype; /* am_dtype */
  int32_t ndim;
  int64_t shape[AM_MAX_DIMS];
} am_tensor;

/* An attribute of an operator; booleans are integers. A list of integers is its length, followed by its elements. */
typedef union am_attr {
  int64_t i;
  double f;
  const int64_t* list;
} am_attr;

/* One worker's view of the team that runs a step. */
typedef struct am_team {
  int32_t worker;      /* 0 … num_workers-1 */
  int32_t num_workers; /* at least 1 */
  void* scratch;       /* private to this worker, 64-byte aligned, of the size that scratch_bytes returned */
  void* shared;        /* the runner's own state */
  void (*barrier)(const struct am_team* team);
  int64_t (*claim)(
      const struct am_team* team); /* tickets 0, 1, 2, …, unique in the team; they restart with every step */
  /* Scratch of any worker, for results that other workers read after a barrier. */
  void* (*scratch_of)(const struct am_team* team, int32_t worker);
} am_team;

typedef struct am_kernel {
  uint32_t abi_version; /* AM_KERNEL_ABI_VERSION */
  uint32_t num_inputs;
  uint32_t num_outputs;
  uint32_t num_attrs;
  const char* name; /* "operator/variant", such as "rms_norm/avx512" */
  void (*run)(const am_tensor* inputs, const am_tensor* outputs, const am_attr* attrs, const am_team* team);
  /* Bytes of scratch per worker for tensors of at most these shapes; NULL for none. Called when a plan is built and
   * when the number of workers changes. Smaller shapes must not need more. */
  size_t (*scratch_bytes)(const am_tensor* inputs, const am_tensor* outputs, const am_attr* attrs, int32_t num_workers);
} am_kernel;

#ifdef __cplusplus
}
#endif
#endif /* AETHERMIND_KERNEL_ABI_H */

/* The few calls of libcuda.so.1 that the canary makes, without a GPU: 8 GiB of device memory, and a
 * client's MPS limit that is kept or, with FAKE_CUDA_FORGETS, not. FAKE_CUDA_INIT is cuInit's answer. */
#include <stdlib.h>
#include <string.h>

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? strtol(text, NULL, 10) : otherwise;
}

int cuInit(unsigned flags) { return (int)number("FAKE_CUDA_INIT", 0); }

int cuCtxCreate_v2(void **context, unsigned flags, int device) { return 0; }

int cuMemAlloc_v2(unsigned long long *memory, size_t bytes) {
  size_t limit = (size_t)8 << 30;
  const char *told = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"); /* 0=1024M */
  if (told && !getenv("FAKE_CUDA_FORGETS")) limit = (size_t)strtol(strchr(told, '=') + 1, NULL, 10) << 20;
  return bytes > limit ? 2 : 0;
}

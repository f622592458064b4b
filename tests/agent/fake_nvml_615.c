/* The fake library as a driver 615 has it: with memory limits by control group.
 *
 * What was set is appended to the file FAKE_NVML_STATE.limits: `GPU GROUP SOFT HARD`, in bytes.
 */
#include "fake_nvml.c"

typedef struct { char *group; unsigned long soft, hard; } Limits;

int nvmlDeviceSetMemoryLimits_v1(Handle *gpu, Limits *limits) {
    char path[512];
    FILE *file;
    BEGIN(gpu->gpu);
    snprintf(path, sizeof path, "%s.limits", getenv("FAKE_NVML_STATE"));
    if (!(file = fopen(path, "a"))) return INVALID;
    fprintf(file, "%d %s %lu %lu\n", gpu->gpu, limits->group, limits->soft, limits->hard);
    fclose(file);
    return SUCCESS;
}

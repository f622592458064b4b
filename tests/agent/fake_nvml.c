/* A libnvidia-ml.so.1 without a GPU: what it says is in a file that is read again at every call.
 *
 * FAKE_NVML_STATE names the file. Its lines (GPUs are numbered in the order of their lines):
 *   gpu UUID TOTAL_MIB RESERVED_MIB USED_MIB UTIL NAME     UTIL in percent, -1: not supported
 *   proc GPU PID MIB C|G|M                                 MIB -1: not available
 *   sample GPU PID TIMESTAMP_US SM                         as the driver keeps them in its ring
 *   fault GPU FUNCTION CODE                                that function answers CODE; GPU -1: all
 * Answers sizes and errors as the real one does: INSUFFICIENT_SIZE to a question for the size,
 * NOT_FOUND where no sample is newer than asked for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, NO_DRIVER = 9 };
enum { MAX_GPUS = 16, MAX_ENTRIES = 256 };

typedef unsigned long long u64;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; u64 memory; unsigned gi, ci; } Process;
typedef struct { unsigned pid; u64 time; unsigned sm, mem, enc, dec; } Sample;

typedef struct { char uuid[96], name[96]; long long total, reserved, used; int util; } Gpu;
typedef struct { int gpu; unsigned pid; long long mib; char kind; } Proc;
typedef struct { int gpu; Sample sample; } Ring;
typedef struct { int gpu; char function[96]; int code; } Fault;

static struct {
    Gpu gpus[MAX_GPUS];
    Proc procs[MAX_ENTRIES];
    Ring ring[MAX_ENTRIES];
    Fault faults[MAX_ENTRIES];
    int n_gpus, n_procs, n_ring, n_faults;
} state;

/* Handles are addresses of these, so that a handle stays the same from call to call. */
static int handles[MAX_GPUS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static int load(void) {
    char line[512];
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    memset(&state, 0, sizeof state);
    if (!file) return NO_DRIVER;
    while (fgets(line, sizeof line, file)) {
        Gpu *g = &state.gpus[state.n_gpus];
        Proc *p = &state.procs[state.n_procs];
        Ring *r = &state.ring[state.n_ring];
        Fault *f = &state.faults[state.n_faults];
        if (sscanf(line, "gpu %95s %lld %lld %lld %d %95[^\n]", g->uuid, &g->total, &g->reserved,
                   &g->used, &g->util, g->name) == 6) state.n_gpus++;
        else if (sscanf(line, "proc %d %u %lld %c", &p->gpu, &p->pid, &p->mib, &p->kind) == 4)
            state.n_procs++;
        else if (sscanf(line, "sample %d %u %llu %u", &r->gpu, &r->sample.pid, &r->sample.time,
                        &r->sample.sm) == 4) state.n_ring++;
        else if (sscanf(line, "fault %d %95s %d", &f->gpu, f->function, &f->code) == 3)
            state.n_faults++;
    }
    fclose(file);
    return SUCCESS;
}

static int begin(int gpu, const char *function) {
    int answer = load();
    for (int i = 0; i < state.n_faults; i++)
        if (!strcmp(state.faults[i].function, function)
            && (state.faults[i].gpu == gpu || state.faults[i].gpu < 0))
            return state.faults[i].code;
    return answer ? answer : gpu >= state.n_gpus ? INVALID : SUCCESS;
}

#define BEGIN(gpu) do { int fault = begin(gpu, __func__); if (fault) return fault; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; BEGIN(-1); return SUCCESS; }
int nvmlInit_v2(void) { BEGIN(-1); return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NO_DRIVER ? "Driver Not Loaded" : "Fake"; }

int nvmlDeviceGetCount_v2(unsigned *count) { BEGIN(-1); *count = state.n_gpus; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, int **handle) {
    BEGIN((int)index);
    *handle = &handles[index];
    return SUCCESS;
}

static int copy(char *to, unsigned length, const char *text) {
    if (strlen(text) >= length) return SMALL;
    strcpy(to, text);
    return SUCCESS;
}

int nvmlDeviceGetUUID(int *gpu, char *text, unsigned length) {
    BEGIN(*gpu);
    return copy(text, length, state.gpus[*gpu].uuid);
}

int nvmlDeviceGetName(int *gpu, char *text, unsigned length) {
    BEGIN(*gpu);
    return copy(text, length, state.gpus[*gpu].name);
}

int nvmlDeviceGetMemoryInfo_v2(int *gpu, Memory *memory) {
    BEGIN(*gpu);
    const Gpu *g = &state.gpus[*gpu];
    memory->total = (u64)g->total << 20;
    memory->reserved = (u64)g->reserved << 20;
    memory->used = (u64)g->used << 20;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(int *gpu, u64 *memory) { /* total, free, used */
    BEGIN(*gpu);
    const Gpu *g = &state.gpus[*gpu];
    memory[0] = (u64)g->total << 20;
    memory[2] = (u64)(g->used + g->reserved) << 20;
    memory[1] = memory[0] - memory[2];
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(int *gpu, Rates *rates) {
    BEGIN(*gpu);
    if (state.gpus[*gpu].util < 0) return NOT_SUPPORTED;
    rates->gpu = rates->memory = state.gpus[*gpu].util;
    return SUCCESS;
}

static int list(int gpu, char kind, unsigned *count, Process *processes) {
    unsigned room = *count, found = 0;
    for (int i = 0; i < state.n_procs; i++) {
        const Proc *p = &state.procs[i];
        if (p->gpu != gpu || p->kind != kind) continue;
        if (found < room && processes)
            processes[found] = (Process){p->pid, p->mib < 0 ? ~0ULL : (u64)p->mib << 20, ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > room || (found && !processes) ? SMALL : SUCCESS;
}

#define LISTING(name, kind) \
    int name(int *gpu, unsigned *count, Process *processes) { \
        BEGIN(*gpu); \
        return list(*gpu, kind, count, processes); \
    }
LISTING(nvmlDeviceGetComputeRunningProcesses_v3, 'C')
LISTING(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G')
LISTING(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M')

int nvmlDeviceGetProcessUtilization(int *gpu, Sample *samples, unsigned *count, u64 since) {
    unsigned room = samples ? *count : 0, found = 0;
    int newer = 0;
    BEGIN(*gpu);
    for (int i = 0; i < state.n_ring; i++) { /* the whole ring, old samples too, once one is new */
        if (state.ring[i].gpu != *gpu) continue;
        newer |= state.ring[i].sample.time > since;
        if (found < room) samples[found] = state.ring[i].sample;
        found++;
    }
    if (!newer) return NOT_FOUND;
    *count = found;
    return samples ? SUCCESS : SMALL;
}

/* A libnvidia-ml.so.1 without a GPU: what it says is in a file, which is looked at in every call.
 *
 * FAKE_NVML_STATE names the file; replace it by renaming another one onto it. Its lines:
 *   gpu UUID TOTAL_MIB RESERVED_MIB USED_MIB UTIL NAME     UTIL in percent, -1: not supported
 *   mig GPU UUID GI CI TOTAL_MIB RESERVED_MIB USED_MIB NAME   an instance; its GPU is in MIG mode
 *   empty GPU                                              in MIG mode, without an instance
 *   gpm GPU GI TICKS BUSY                                  counters of a GPU instance, from its start
 *   proc GPU PID MIB C|G|M [GI CI]                         MIB -1: not available
 *   sample GPU PID TIMESTAMP_US SM                         as the driver keeps them in its ring
 *   xid GPU SERIAL CODE [GI CI]                            an event, told once to each event set
 *   recovery GPU ACTION                                    what the driver asks for; else 0: none
 *   rows GPU                                               memory rows could not be remapped
 *   fault GPU FUNCTION CODE                                FUNCTION (*: any) answers CODE; GPU -1: all
 * GPUs are numbered in the order of their lines, and so are the instances of each. Sizes and errors
 * are answered as the real library does: INSUFFICIENT_SIZE to a question for the size, NOT_FOUND
 * where no sample is newer than asked for, TIMEOUT where no event waits.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, NO_DRIVER = 9,
       TIMEOUT = 10 };
enum { MAX_GPUS = 16, MAX_MIGS = 8, MAX_ENTRIES = 2048, NONE = -1 };
enum { EVENT_XID = 8, FIELD_RECOVERY = 230, TYPE_UNSIGNED = 1 };

typedef unsigned long long u64;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; u64 memory; unsigned gi, ci; } Process;
typedef struct { unsigned pid; u64 time; unsigned sm, mem, enc, dec; } Sample;
typedef struct { void *device; u64 type, data; unsigned gi, ci; } Event;
typedef struct { unsigned field, scope; long long at, latency; unsigned type; int answer;
                 union { double d; u64 u; } value; } Field;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;

typedef struct { int gpu; char uuid[96], name[96]; long long total, reserved, used;
                 int util, gi, ci; } Device; /* a GPU, or an instance of one */
typedef struct { int gpu; unsigned pid; long long mib; char kind; int gi, ci; } Proc;
typedef struct { int gpu; Sample sample; } Ring;
typedef struct { int gpu; u64 serial, code; int gi, ci; } Xid;
typedef struct { int gpu; char function[96]; int code; } Fault;
typedef struct { int gpu, gi; double ticks, busy; } Counters;

static struct {
    Device gpus[MAX_GPUS], migs[MAX_ENTRIES];
    Proc procs[MAX_ENTRIES];
    Ring ring[MAX_ENTRIES];
    Xid xids[MAX_ENTRIES];
    Fault faults[MAX_ENTRIES];
    Counters counters[MAX_ENTRIES];
    int recovery[MAX_GPUS], bad_rows[MAX_GPUS], empty[MAX_GPUS];
    int n_gpus, n_migs, n_procs, n_ring, n_xids, n_faults, n_counters;
} state;

/* A handle is the address of one of these, so that it stays the same from call to call. */
typedef struct { int gpu, mig; } Handle;
static Handle handles[MAX_GPUS][MAX_MIGS + 1];

static void parse(const char *line) {
    Device *g = &state.gpus[state.n_gpus], *m = &state.migs[state.n_migs];
    Proc *p = &state.procs[state.n_procs];
    Ring *r = &state.ring[state.n_ring];
    Xid *x = &state.xids[state.n_xids];
    Fault *f = &state.faults[state.n_faults];
    Counters *c = &state.counters[state.n_counters];
    int gpu, value;
    p->gi = p->ci = x->gi = x->ci = NONE;
    if (sscanf(line, "gpu %95s %lld %lld %lld %d %95[^\n]", g->uuid, &g->total, &g->reserved,
               &g->used, &g->util, g->name) == 6) {
        g->gpu = state.n_gpus++;
        g->gi = g->ci = NONE;
    } else if (sscanf(line, "mig %d %95s %d %d %lld %lld %lld %95[^\n]", &m->gpu, m->uuid, &m->gi,
                      &m->ci, &m->total, &m->reserved, &m->used, m->name) == 8) {
        m->util = -1;
        state.n_migs++;
    } else if (sscanf(line, "proc %d %u %lld %c %d %d", &p->gpu, &p->pid, &p->mib, &p->kind,
                      &p->gi, &p->ci) >= 4) state.n_procs++;
    else if (sscanf(line, "sample %d %u %llu %u", &r->gpu, &r->sample.pid, &r->sample.time,
                    &r->sample.sm) == 4) state.n_ring++;
    else if (sscanf(line, "xid %d %llu %llu %d %d", &x->gpu, &x->serial, &x->code, &x->gi,
                    &x->ci) >= 3) state.n_xids++;
    else if (sscanf(line, "fault %d %95s %d", &f->gpu, f->function, &f->code) == 3)
        state.n_faults++;
    else if (sscanf(line, "gpm %d %d %lf %lf", &c->gpu, &c->gi, &c->ticks, &c->busy) == 4)
        state.n_counters++;
    else if (sscanf(line, "recovery %d %d", &gpu, &value) == 2) state.recovery[gpu] = value;
    else if (sscanf(line, "rows %d", &gpu) == 1) state.bad_rows[gpu] = 1;
    else if (sscanf(line, "empty %d", &gpu) == 1) state.empty[gpu] = 1;
}

static int load(void) {
    static struct stat loaded;
    struct stat now;
    char line[512];
    const char *path = getenv("FAKE_NVML_STATE");
#ifdef STATE
    if (!path) path = STATE; /* for processes that are handed no environment */
#endif
    if (!path || stat(path, &now)) return NO_DRIVER;
    if (now.st_ino == loaded.st_ino && now.st_size == loaded.st_size
        && now.st_mtim.tv_sec == loaded.st_mtim.tv_sec
        && now.st_mtim.tv_nsec == loaded.st_mtim.tv_nsec) return SUCCESS;
    FILE *file = fopen(path, "r");
    if (!file) return NO_DRIVER;
    memset(&state, 0, sizeof state);
    while (fgets(line, sizeof line, file)) parse(line);
    fclose(file);
    loaded = now;
    for (int g = 0; g < MAX_GPUS; g++)
        for (int m = 0; m <= MAX_MIGS; m++) handles[g][m] = (Handle){g, m - 1};
    return SUCCESS;
}

static int begin(int gpu, const char *function) {
    int answer = load();
    for (int i = 0; i < state.n_faults; i++)
        if ((!strcmp(state.faults[i].function, function) || !strcmp(state.faults[i].function, "*"))
            && (state.faults[i].gpu == gpu || state.faults[i].gpu < 0))
            return state.faults[i].code;
    return answer ? answer : gpu >= state.n_gpus ? INVALID : SUCCESS;
}

#define BEGIN(gpu) do { int fault = begin(gpu, __func__); if (fault) return fault; } while (0)

static const Device *mig_at(int gpu, int index) {
    for (int i = 0; i < state.n_migs; i++)
        if (state.migs[i].gpu == gpu && index-- == 0) return &state.migs[i];
    return NULL;
}

static const Device *device(const Handle *h) {
    return h->mig < 0 ? &state.gpus[h->gpu] : mig_at(h->gpu, h->mig);
}

/* An instance may be gone since its handle was given. */
#define ON(h) do { BEGIN((h)->gpu); if (!device(h)) return INVALID; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; BEGIN(-1); return SUCCESS; }
int nvmlInit_v2(void) { BEGIN(-1); return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NO_DRIVER ? "Driver Not Loaded" : "Fake"; }

static int copy(char *to, unsigned length, const char *text) {
    if (strlen(text) >= length) return SMALL;
    strcpy(to, text);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) { return copy(text, length, "580.00"); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) { BEGIN(-1); *count = state.n_gpus; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **handle) {
    BEGIN((int)index);
    *handle = &handles[index][0];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **handle) {
    BEGIN(-1);
    for (int g = 0; g < state.n_gpus; g++)
        if (!strcmp(state.gpus[g].uuid, uuid)) { *handle = &handles[g][0]; return SUCCESS; }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(Handle *h, unsigned *index) { ON(h); *index = h->gpu; return SUCCESS; }

int nvmlDeviceGetUUID(Handle *h, char *text, unsigned length) {
    ON(h);
    return copy(text, length, device(h)->uuid);
}

int nvmlDeviceGetName(Handle *h, char *text, unsigned length) {
    ON(h);
    return copy(text, length, device(h)->name);
}

int nvmlDeviceGetPciInfo_v3(Handle *h, Pci *pci) {
    ON(h);
    memset(pci, 0, sizeof *pci);
    pci->bus = h->gpu + 1;
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Handle *h, Memory *memory) {
    ON(h);
    const Device *d = device(h);
    memory->total = (u64)d->total << 20;
    memory->reserved = (u64)d->reserved << 20;
    memory->used = (u64)d->used << 20;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Handle *h, u64 *memory) { /* total, free, used */
    ON(h);
    const Device *d = device(h);
    memory[0] = (u64)d->total << 20;
    memory[2] = (u64)(d->used + d->reserved) << 20;
    memory[1] = memory[0] - memory[2];
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Handle *h, Rates *rates) {
    ON(h);
    /* Neither an instance nor its GPU has one. */
    if (device(h)->util < 0 || mig_at(h->gpu, 0)) return NOT_SUPPORTED;
    rates->gpu = rates->memory = device(h)->util;
    return SUCCESS;
}

/* ---- instances ---- */

int nvmlDeviceGetMigMode(Handle *h, unsigned *current, unsigned *pending) {
    ON(h);
    *current = *pending = mig_at(h->gpu, 0) || state.empty[h->gpu];
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Handle *h, unsigned *count) {
    ON(h);
    *count = mig_at(h->gpu, 0) ? MAX_MIGS - 1 : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle *h, unsigned index, Handle **mig) {
    ON(h);
    if (!mig_at(h->gpu, index)) return NOT_FOUND;
    *mig = &handles[h->gpu][index + 1];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(Handle *h, unsigned *id) {
    ON(h);
    if (h->mig < 0) return INVALID;
    *id = device(h)->gi;
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(Handle *h, unsigned *id) {
    ON(h);
    if (h->mig < 0) return INVALID;
    *id = device(h)->ci;
    return SUCCESS;
}

/* ---- processes ---- */

static int list(const Handle *h, char kind, unsigned *count, Process *processes) {
    unsigned room = *count, found = 0;
    const Device *d = device(h);
    for (int i = 0; i < state.n_procs; i++) {
        const Proc *p = &state.procs[i];
        if (p->gpu != h->gpu || p->kind != kind) continue;
        if (h->mig >= 0 && (p->gi != d->gi || p->ci != d->ci)) continue;
        if (found < room && processes)
            processes[found] = (Process){p->pid, p->mib < 0 ? ~0ULL : (u64)p->mib << 20,
                                         (unsigned)p->gi, (unsigned)p->ci};
        found++;
    }
    *count = found;
    return found > room || (found && !processes) ? SMALL : SUCCESS;
}

#define LISTING(name, kind) \
    int name(Handle *h, unsigned *count, Process *processes) { \
        ON(h); \
        return list(h, kind, count, processes); \
    }
LISTING(nvmlDeviceGetComputeRunningProcesses_v3, 'C')
LISTING(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G')
LISTING(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M')

int nvmlDeviceGetProcessUtilization(Handle *h, Sample *samples, unsigned *count, u64 since) {
    unsigned room = samples ? *count : 0, found = 0;
    int newer = 0;
    ON(h);
    if (mig_at(h->gpu, 0)) return NOT_SUPPORTED;
    for (int i = 0; i < state.n_ring; i++) { /* the whole ring, old samples too, once one is new */
        if (state.ring[i].gpu != h->gpu) continue;
        newer |= state.ring[i].sample.time > since;
        if (found < room) samples[found] = state.ring[i].sample;
        found++;
    }
    if (!newer) return NOT_FOUND;
    *count = found;
    return samples ? SUCCESS : SMALL;
}

/* ---- counters of GPU instances ---- */

typedef struct { unsigned version, supported; } Support;
typedef struct { unsigned id; int answer; double value; char *names[3]; } Metric;
typedef struct { unsigned version, n; Counters *from, *to; Metric metrics[1]; } Metrics;

int nvmlGpmQueryDeviceSupport(Handle *h, Support *support) {
    ON(h);
    support->supported = state.n_counters > 0;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(Counters **sample) {
    BEGIN(-1);
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

int nvmlGpmSampleFree(Counters *sample) { free(sample); return SUCCESS; }

int nvmlGpmMigSampleGet(Handle *h, unsigned gi, Counters *sample) {
    ON(h);
    for (int i = 0; i < state.n_counters; i++)
        if (state.counters[i].gpu == h->gpu && state.counters[i].gi == (int)gi) {
            *sample = state.counters[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlGpmMetricsGet(Metrics *asked) {
    BEGIN(-1);
    double ticks = asked->to->ticks - asked->from->ticks;
    for (unsigned i = 0; i < asked->n; i++) {
        Metric *m = &asked->metrics[i];
        m->answer = m->id == 1 ? SUCCESS : NOT_SUPPORTED;
        m->value = 100 * (asked->to->busy - asked->from->busy) / ticks; /* without ticks: no number */
    }
    return SUCCESS;
}

/* ---- health ---- */

typedef struct { u64 told; int registered[MAX_GPUS]; } EventSet;

int nvmlEventSetCreate(EventSet **set) {
    BEGIN(-1);
    *set = calloc(1, sizeof **set);
    /* What happened before it was made is not told. */
    for (int i = 0; i < state.n_xids; i++)
        if (state.xids[i].serial > (*set)->told) (*set)->told = state.xids[i].serial;
    return SUCCESS;
}

int nvmlEventSetFree(EventSet *set) { free(set); return SUCCESS; }

int nvmlDeviceGetSupportedEventTypes(Handle *h, u64 *types) {
    ON(h);
    *types = EVENT_XID;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Handle *h, u64 types, EventSet *set) {
    ON(h);
    set->registered[h->gpu] |= types & EVENT_XID ? 1 : 0;
    return SUCCESS;
}

int nvmlEventSetWait_v2(EventSet *set, Event *event, unsigned timeout_ms) {
    const Xid *next = NULL;
    (void)timeout_ms;
    BEGIN(-1);
    for (int i = 0; i < state.n_xids; i++) {
        const Xid *x = &state.xids[i];
        if (x->serial > set->told && set->registered[x->gpu] && (!next || x->serial < next->serial))
            next = x;
    }
    if (!next) return TIMEOUT;
    set->told = next->serial;
    *event = (Event){&handles[next->gpu][0], EVENT_XID, next->code, (unsigned)next->gi,
                     (unsigned)next->ci};
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(Handle *h, int count, Field *fields) {
    ON(h);
    for (int i = 0; i < count; i++) {
        fields[i].answer = fields[i].field == FIELD_RECOVERY ? SUCCESS : NOT_SUPPORTED;
        fields[i].type = TYPE_UNSIGNED;
        fields[i].value.u = state.recovery[h->gpu];
    }
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Handle *h, unsigned *correctable, unsigned *uncorrectable,
                              unsigned *pending, unsigned *failed) {
    ON(h);
    *correctable = *uncorrectable = *pending = 0;
    *failed = state.bad_rows[h->gpu];
    return SUCCESS;
}

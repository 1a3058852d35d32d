/* A stand-in for libnvidia-ml.so.1: it plays the GPUs that a test describes in a mapped file (NVML_WORLD). */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, NO_DRIVER = 9, TIMEOUT = 10 };
enum { GPUS = 16, PROCESSES = 32, INSTANCES = 7 };

typedef struct { uint32_t pid, sm, gi, ci; uint64_t memory; } process_t;
typedef struct { uint32_t there, gi, slices, memory_mb; uint64_t total, used; char uuid[80]; } instance_t;
typedef struct {
    uint32_t error, hidden, minor, util, memory_util, milliwatts, celsius, sm_clock, memory_clock, mig, xid, xids;
    uint32_t no_util, no_energy, no_power, mps, processes, unused;
    uint64_t throttle, millijoules, total, used, corrected, uncorrected;
    char uuid[80], name[64], bus[32];
    process_t process[PROCESSES];
    instance_t instance[INSTANCES];
} gpu_t;
typedef struct {
    uint32_t init_error, generation, stale_error, count;
    uint64_t calls;
    gpu_t gpu[GPUS];
} world_t;

typedef struct { uint32_t gpu, instance; } handle_t; /* instance INSTANCES: the whole GPU */

static world_t *world;
static handle_t handles[GPUS][INSTANCES + 1];
static uint32_t entered, told[GPUS];

static int open_world(void) {
    const char *path = getenv("NVML_WORLD");
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) return NO_DRIVER;
    if (world) munmap(world, sizeof *world);
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (world == MAP_FAILED) { world = NULL; return NO_DRIVER; }
    for (uint32_t i = 0; i < GPUS; i++)
        for (uint32_t k = 0; k <= INSTANCES; k++) handles[i][k] = (handle_t){i, k};
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int failed = open_world();
    if (failed) return failed;
    world->calls++;
    if (world->init_error) return (int)world->init_error;
    entered = world->generation;
    for (int i = 0; i < GPUS; i++) told[i] = world->gpu[i].xids;
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { entered = 0; return OK; }

static int usable(void) {
    if (!world || !entered) return UNINITIALIZED;
    world->calls++;
    if (world->init_error) return (int)world->init_error;
    return entered == world->generation ? OK : (int)world->stale_error;
}

/* Every call on a device begins so: the driver may be gone, and the GPU may have fallen off the bus. */
#define GPU(device)                                             \
    int state = usable();                                       \
    if (state) return state;                                    \
    gpu_t *gpu = &world->gpu[(device)->gpu];                    \
    if (gpu->error) return (int)gpu->error;                     \
    instance_t *part = (device)->instance < INSTANCES ? &gpu->instance[(device)->instance] : NULL; \
    (void)part

int nvmlDeviceGetCount_v2(unsigned *count) {
    int state = usable();
    if (state) return state;
    *count = 0;
    for (uint32_t i = 0; i < world->count; i++) *count += !world->gpu[i].hidden;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t **device) {
    int state = usable();
    if (state) return state;
    for (uint32_t i = 0; i < world->count; i++)
        if (!world->gpu[i].hidden && !index--) { *device = &handles[i][INSTANCES]; return OK; }
    return INVALID;
}
static int text(char *to, unsigned room, const char *from) {
    if (strlen(from) >= room) return SMALL;
    strcpy(to, from);
    return OK;
}
int nvmlDeviceGetName(handle_t *device, char *name, unsigned room) { GPU(device); return text(name, room, gpu->name); }
int nvmlDeviceGetUUID(handle_t *device, char *uuid, unsigned room) {
    GPU(device);
    return text(uuid, room, part ? part->uuid : gpu->uuid);
}
int nvmlDeviceGetMinorNumber(handle_t *device, unsigned *minor) { GPU(device); *minor = gpu->minor; return OK; }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
int nvmlDeviceGetPciInfo_v3(handle_t *device, pci_t *pci) {
    GPU(device);
    memset(pci, 0, sizeof *pci);
    return text(pci->bus_id, 32, gpu->bus);
}
int nvmlDeviceGetUtilizationRates(handle_t *device, unsigned rates[2]) {
    GPU(device);
    if (gpu->no_util || gpu->mig) return NOT_SUPPORTED; /* as on a GPU in MIG mode */
    rates[0] = gpu->util;
    rates[1] = gpu->memory_util;
    return OK;
}
int nvmlDeviceGetMemoryInfo(handle_t *device, uint64_t memory[3]) {
    GPU(device);
    uint64_t total = part ? part->total : gpu->total, used = part ? part->used : gpu->used;
    memory[0] = total;
    memory[1] = total - used;
    memory[2] = used;
    return OK;
}
int nvmlDeviceGetPowerUsage(handle_t *device, unsigned *milliwatts) {
    GPU(device);
    if (gpu->no_power) return NOT_SUPPORTED;
    *milliwatts = gpu->milliwatts;
    return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(handle_t *device, uint64_t *millijoules) {
    GPU(device);
    if (gpu->no_energy) return NOT_SUPPORTED;
    *millijoules = gpu->millijoules;
    return OK;
}
int nvmlDeviceGetClockInfo(handle_t *device, unsigned kind, unsigned *mhz) {
    GPU(device);
    *mhz = kind == 2 ? gpu->memory_clock : gpu->sm_clock;
    return OK;
}
int nvmlDeviceGetTemperature(handle_t *device, unsigned sensor, unsigned *celsius) {
    GPU(device);
    if (sensor) return INVALID;
    *celsius = gpu->celsius;
    return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(handle_t *device, uint64_t *reasons) {
    GPU(device);
    *reasons = gpu->throttle;
    return OK;
}
int nvmlDeviceGetTotalEccErrors(handle_t *device, unsigned kind, unsigned counter, uint64_t *count) {
    GPU(device);
    if (counter) return NOT_SUPPORTED;
    *count = kind ? gpu->uncorrected : gpu->corrected;
    return OK;
}
int nvmlDeviceGetMigMode(handle_t *device, unsigned *current, unsigned *pending) {
    GPU(device);
    *current = *pending = gpu->mig;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(handle_t *device, unsigned *count) { GPU(device); *count = INSTANCES; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(handle_t *device, unsigned index, handle_t **instance) {
    GPU(device);
    if (index >= INSTANCES || !gpu->instance[index].there) return NOT_FOUND;
    *instance = &handles[device->gpu][index];
    return OK;
}
int nvmlDeviceGetGpuInstanceId(handle_t *device, unsigned *id) {
    GPU(device);
    if (!part) return INVALID;
    *id = part->gi;
    return OK;
}
typedef struct { unsigned sm, copy, decode, encode, jpeg, ofa, slices, compute; uint64_t memory_mb; } attributes_t;
int nvmlDeviceGetAttributes_v2(handle_t *device, attributes_t *attributes) {
    GPU(device);
    if (!part) return INVALID;
    *attributes = (attributes_t){.slices = part->slices, .compute = part->slices, .memory_mb = part->memory_mb};
    return OK;
}
typedef struct { unsigned pid; uint64_t memory; unsigned gi, ci; } running_t;
static int list(handle_t *device, uint32_t mps, unsigned *count, running_t *running) {
    GPU(device);
    unsigned found = 0, room = *count;
    if (gpu->mps != mps) { *count = 0; return OK; }
    for (uint32_t i = 0; i < gpu->processes; i++) {
        process_t *p = &gpu->process[i];
        if (part && p->gi != part->gi) continue;
        if (running && found < room) running[found] = (running_t){p->pid, p->memory, p->gi, p->ci};
        found++;
    }
    *count = found;
    return found > room ? SMALL : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(handle_t *device, unsigned *count, running_t *running) {
    return list(device, 0, count, running);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(handle_t *device, unsigned *count, running_t *running) {
    return list(device, 1, count, running);
}
typedef struct { unsigned pid; uint64_t time; unsigned sm, memory, encode, decode; } share_t;
int nvmlDeviceGetProcessUtilization(handle_t *device, share_t *shares, unsigned *count, uint64_t since) {
    GPU(device);
    (void)since;
    if (gpu->mig || gpu->no_util) return NOT_SUPPORTED;
    unsigned room = *count;
    *count = gpu->processes;
    if (!gpu->processes) return NOT_FOUND;
    if (!shares || room < gpu->processes) return SMALL;
    for (uint32_t i = 0; i < gpu->processes; i++) shares[i] = (share_t){.pid = gpu->process[i].pid, .time = 1, .sm = gpu->process[i].sm};
    return OK;
}

typedef struct { handle_t *device; uint64_t type, data; unsigned gi, ci; } event_t;
int nvmlEventSetCreate(void **set) { int state = usable(); *set = &told; return state; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceGetSupportedEventTypes(handle_t *device, uint64_t *types) { GPU(device); *types = 0x1f; return OK; }
int nvmlDeviceRegisterEvents(handle_t *device, uint64_t types, void *set) { (void)types; (void)set; GPU(device); return OK; }
int nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout) {
    (void)set, (void)timeout;
    int state = usable();
    if (state) return state;
    for (uint32_t i = 0; i < world->count; i++)
        if (told[i] != world->gpu[i].xids) {
            told[i]++;
            *event = (event_t){&handles[i][INSTANCES], 8, world->gpu[i].xid, ~0u, ~0u};
            return OK;
        }
    return TIMEOUT;
}

/* NVML, as nvidia-smi and pynvml read it: memory and processes come from the accounts.
 *
 * Its header is in no wheel; the structures below are those of its public API.
 */
#define _GNU_SOURCE
#include "phantom.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>

#define NVML_SUCCESS 0
#define NVML_INVALID_ARGUMENT 2
#define NVML_NOT_SUPPORTED 3
#define NVML_NOT_FOUND 6
#define NVML_INSUFFICIENT_SIZE 7

/* A handle is the GPU's number in the accounts, plus one: NVML doesn't heed CUDA_VISIBLE_DEVICES. */
#define GPU(handle) (&phantom()->gpu[NUMBER(handle)])
#define NUMBER(handle) ((int)(uintptr_t)(handle)-1)

int nvmlInit(void) { return phantom(), NVML_SUCCESS; }
int nvmlInit_v2(void) { return phantom(), NVML_SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return (void)flags, phantom(), NVML_SUCCESS; }
int nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(int error) {
    switch (error) {
    case NVML_SUCCESS: return "Success";
    case NVML_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_NOT_SUPPORTED: return "Not Supported";
    case NVML_NOT_FOUND: return "Not Found";
    case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
    default: return "Unknown Error";
    }
}
int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    return snprintf(text, length, "%s", "phantom"), NVML_SUCCESS;
}
int nvmlSystemGetNVMLVersion(char *text, unsigned length) {
    return snprintf(text, length, "%s", "phantom"), NVML_SUCCESS;
}
int nvmlSystemGetCudaDriverVersion(int *version) { return *version = CUDA_VERSION, NVML_SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = CUDA_VERSION, NVML_SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = phantom()->gpus, NVML_SUCCESS; }
int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **handle) {
    if (number >= phantom()->gpus) return NVML_INVALID_ARGUMENT;
    return *handle = (void *)(uintptr_t)(number + 1), NVML_SUCCESS;
}
int nvmlDeviceGetHandleByIndex(unsigned number, void **handle) { return nvmlDeviceGetHandleByIndex_v2(number, handle); }

int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    const uint8_t *id = GPU(handle)->uuid;
    if (length < 41) return NVML_INSUFFICIENT_SIZE;
    char *at = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++) at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", id[i]);
    return NVML_SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *wanted, void **handle) {
    for (unsigned number = 0; number < phantom()->gpus; number++) {
        char text[64];
        nvmlDeviceGetHandleByIndex_v2(number, handle);
        nvmlDeviceGetUUID(*handle, text, sizeof text);
        if (!strcmp(text, wanted)) return NVML_SUCCESS;
    }
    return NVML_NOT_FOUND;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *wanted, void **handle) {
    unsigned domain, bus;
    if (sscanf(wanted, "%x:%x:", &domain, &bus) != 2 || !bus) return NVML_INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, handle);
}
int nvmlDeviceGetHandleByPciBusId(const char *wanted, void **handle) {
    return nvmlDeviceGetHandleByPciBusId_v2(wanted, handle);
}
int nvmlDeviceGetName(void *handle, char *text, unsigned length) {
    return snprintf(text, length, "%s", GPU(handle)->name), NVML_SUCCESS;
}
int nvmlDeviceGetIndex(void *handle, unsigned *number) { return *number = (unsigned)NUMBER(handle), NVML_SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    return *major = GPU(handle)->major, *minor = GPU(handle)->minor, NVML_SUCCESS;
}

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *found) {
    found->total = GPU(handle)->total_bytes;
    found->used = phantom_used(NUMBER(handle));
    found->free = found->total > found->used ? found->total - found->used : 0;
    return NVML_SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *found) {
    struct memory plain;
    nvmlDeviceGetMemoryInfo(handle, &plain);
    found->total = plain.total, found->reserved = 0, found->free = plain.free, found->used = plain.used;
    return NVML_SUCCESS;
}

struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct process_v1 { /* what the call without a version writes, which is the one that PyTorch's OOM message asks */
    unsigned pid;
    unsigned long long used;
};

static const struct phantom_process *next(int number, int *place) {
    while (*place < PHANTOM_PROCESSES) {
        const struct phantom_process *process = &phantom()->process[(*place)++];
        if (process->pid && process->used_bytes[number] && phantom_alive(process)) return process;
    }
    return NULL;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *found) {
    unsigned room = *count;
    int place = 0;
    *count = 0;
    for (const struct phantom_process *one; (one = next(NUMBER(handle), &place)); (*count)++)
        if (*count < room) found[*count] = (struct process){(unsigned)one->pid, one->used_bytes[NUMBER(handle)], ~0u, ~0u};
    return *count > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, struct process *found) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, found);
}
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, struct process_v1 *found) {
    unsigned room = *count;
    int place = 0;
    *count = 0;
    for (const struct phantom_process *one; (one = next(NUMBER(handle), &place)); (*count)++)
        if (*count < room) found[*count] = (struct process_v1){(unsigned)one->pid, one->used_bytes[NUMBER(handle)]};
    return *count > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
static int none(unsigned *count) { return *count = 0, NVML_SUCCESS; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, void *found) {
    return (void)handle, (void)found, none(count);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, void *found) {
    return (void)handle, (void)found, none(count);
}
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    return (void)handle, (void)current, (void)pending, NVML_NOT_SUPPORTED;
}

/* No NVLink fabric: the state after the version, the cluster, its status and the clique is 0.  What torch asks before
 * it lets segments expand. */
int nvmlDeviceGetGpuFabricInfoV(void *handle, unsigned *found) {
    (void)handle;
    memset(found + 1, 0, 16 + 4 + 4 + 1);
    return NVML_SUCCESS;
}

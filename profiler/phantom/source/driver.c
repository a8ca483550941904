/* The driver's calls: contexts, memory, and virtual-memory management, by which expandable segments grow. */
#define _GNU_SOURCE
#include "phantom.h"

#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#define CONTEXT(device) ((CUcontext)(uintptr_t)(0x100 + (device)))

CUresult cuInit(unsigned int flags) {
    (void)flags;
    return phantom_gpus() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
CUresult cuDriverGetVersion(int *version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { return *count = phantom_gpus(), CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int number) {
    return phantom_gpu(number) ? (*device = number, CUDA_SUCCESS) : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    if (!phantom_gpu(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", phantom_gpu(device)->name);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    return phantom_gpu(device) ? (*bytes = phantom_gpu(device)->total_bytes, CUDA_SUCCESS) : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    if (!phantom_gpu(device)) return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, phantom_gpu(device)->uuid, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    return (CUresult)phantom_attribute((int)attribute, device, value);
}
CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    if (!phantom_gpu(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, (size_t)length, "%s", phantom_bus_id(device));
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    phantom_open_context(device);
    return *context = CONTEXT(device), CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    *flags = 0;
    return *active = phantom_has_context(device), CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) {
    int device = phantom_device();
    return *context = phantom_has_context(device) ? CONTEXT(device) : NULL, CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) { return *device = phantom_device(), CUDA_SUCCESS; }

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = phantom_free(phantom_device());
    *total_bytes = phantom_gpu(phantom_device())->total_bytes;
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
    return (CUresult)phantom_malloc(phantom_device(), (void **)address, bytes);
}
CUresult cuMemFree(CUdeviceptr address) { return (CUresult)phantom_free_at((void *)address); }
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
    return phantom_copy(to, (void *)from, bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyDtoH(to, from, bytes);
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    int device = phantom_owner((void *)address);
    if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
        *(CUcontext *)value = CONTEXT(device >= 0 ? device : phantom_device());
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)value = device;
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
        *(CUdeviceptr *)value = address;
    else if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned *)value = device >= 0 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    else
        *(int *)value = 0;
    return CUDA_SUCCESS;
}

/* --- virtual-memory management ------------------------------------------------------------------------------------ */

struct physical {
    int device;
    uint64_t bytes;
    int uses; /* its handle, and each place where it is mapped */
};
static struct mapping {
    CUdeviceptr address;
    uint64_t bytes;
    struct physical *what;
    struct mapping *next;
} *mappings;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *wanted,
                                       CUmemAllocationGranularity_flags option) {
    (void)wanted, (void)option;
    return *bytes = PHANTOM_GRANULE, CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
    (void)alignment, (void)wanted, (void)flags;
    void *found = phantom_reserve(phantom_device(), bytes);
    return found ? (*address = (CUdeviceptr)found, CUDA_SUCCESS) : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    (void)bytes;
    return phantom_release((void *)address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *found, size_t bytes, const CUmemAllocationProp *wanted,
                     unsigned long long flags) {
    (void)flags;
    int device = wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? wanted->location.id : phantom_device();
    if (!phantom_gpu(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (bytes % PHANTOM_GRANULE) return CUDA_ERROR_INVALID_VALUE;
    if (phantom_take(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct physical *what = malloc(sizeof *what);
    if (!what) abort();
    *what = (struct physical){device, bytes, 1};
    return *found = (CUmemGenericAllocationHandle)(uintptr_t)what, CUDA_SUCCESS;
}
static void drop(struct physical *what) {
    if (--what->uses) return;
    phantom_give(what->device, what->bytes);
    free(what);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle wanted) {
    pthread_mutex_lock(&mutex);
    drop((struct physical *)(uintptr_t)wanted);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle wanted,
                  unsigned long long flags) {
    (void)offset, (void)flags;
    struct mapping *entry = malloc(sizeof *entry);
    if (!entry) abort();
    pthread_mutex_lock(&mutex);
    *entry = (struct mapping){address, bytes, (struct physical *)(uintptr_t)wanted, mappings};
    entry->what->uses++;
    mappings = entry;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    pthread_mutex_lock(&mutex);
    for (struct mapping **at = &mappings; *at;) {
        struct mapping *entry = *at;
        if (entry->address < address || entry->address >= address + bytes) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        drop(entry->what);
        free(entry);
    }
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
CUresult cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle wanted,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    (void)shared, (void)wanted, (void)type, (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* --- modules and launches ----------------------------------------------------------------------------------------- */

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    (void)image;
    return *module = (CUmodule)(uintptr_t)0x200, CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int options, CUjit_option *names, void **values) {
    (void)options, (void)names, (void)values;
    return cuModuleLoadData(module, image);
}
CUresult cuModuleLoad(CUmodule *module, const char *path) { return cuModuleLoadData(module, path); }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    (void)module, (void)name;
    return *function = (CUfunction)(uintptr_t)0x300, CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    (void)function;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared) {
    (void)function, (void)shared;
    int fit = threads > 0 ? phantom_gpu(phantom_device())->threads_per_sm / threads : 1;
    return *blocks = fit > 0 ? fit : 1, CUDA_SUCCESS;
}

/* The driver's private tables: without them whoever asks does without, or fails by itself. */
CUresult cuGetExportTable(const void **table, const CUuuid *name) {
    (void)name;
    return *table = NULL, CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error ? "CUDA_ERROR_UNKNOWN" : "CUDA_SUCCESS";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY        ? "out of memory"
            : error == CUDA_ERROR_NOT_SUPPORTED ? "operation not supported by the phantom GPU"
            : error                             ? "unknown error"
                                                : "no error";
    return CUDA_SUCCESS;
}

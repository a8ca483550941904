/* Devices and what they say of themselves. */
#define _GNU_SOURCE
#include "phantom.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

static __thread int current;

int phantom_device(void) { return current; }

/* Shared memory by compute capability, CUDA programming guide: of a multiprocessor, and what one block may ask for. */
static int shared_of(const struct phantom_gpu *gpu, int block) {
    int kib = 64, kept = 0;
    switch (10 * gpu->major + gpu->minor) {
    case 70: kib = 96; break;
    case 80: kib = 164, kept = 1; break;
    case 86: case 89: case 120: case 121: kib = 100, kept = 1; break;
    case 87: kib = 164, kept = 1; break;
    case 90: case 100: case 103: kib = 228, kept = 1; break;
    }
    return (kib - (block ? kept : 0)) * 1024;
}

static int blocks_of(const struct phantom_gpu *gpu) {
    switch (10 * gpu->major + gpu->minor) {
    case 75: case 86: return 16;
    case 89: case 120: case 121: return 24;
    default: return 32;
    }
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = phantom_gpus();
    return *count ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return phantom_gpus() ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
    if (!phantom_gpu(device)) return cudaErrorInvalidDevice;
    current = device;
    phantom_open_context(device);
    return 0;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
    const struct phantom_gpu *gpu = phantom_gpu(device);
    if (!gpu) return cudaErrorInvalidDevice;
    memset(found, 0, sizeof *found);
    memcpy(found->name, gpu->name, sizeof gpu->name);
    memcpy(found->uuid.bytes, gpu->uuid, sizeof gpu->uuid);
    found->totalGlobalMem = gpu->total_bytes;
    found->sharedMemPerBlock = 48 << 10;
    found->regsPerBlock = found->regsPerMultiprocessor = 65536;
    found->warpSize = 32;
    found->memPitch = 0x7fffffff;
    found->maxThreadsPerBlock = 1024;
    found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024, found->maxThreadsDim[2] = 64;
    found->maxGridSize[0] = 0x7fffffff, found->maxGridSize[1] = found->maxGridSize[2] = 65535;
    found->totalConstMem = 64 << 10;
    found->major = gpu->major, found->minor = gpu->minor;
    found->textureAlignment = 512, found->texturePitchAlignment = 32;
    found->multiProcessorCount = gpu->sms;
    found->canMapHostMemory = found->concurrentKernels = found->unifiedAddressing = found->managedMemory = 1;
    found->streamPrioritiesSupported = found->cooperativeLaunch = found->computePreemptionSupported = 1;
    found->pciBusID = phantom_physical(device) + 1;
    found->asyncEngineCount = 2;
    found->maxThreadsPerMultiProcessor = gpu->threads_per_sm;
    found->sharedMemPerMultiprocessor = (size_t)shared_of(gpu, 0);
    found->sharedMemPerBlockOptin = (size_t)shared_of(gpu, 1);
    found->reservedSharedMemPerBlock = gpu->major >= 8 ? 1024 : 0;
    found->maxBlocksPerMultiProcessor = blocks_of(gpu);
    found->globalL1CacheSupported = found->localL1CacheSupported = 1;
    return 0;
}

/* The runtime's and the driver's numbers for attributes are the same. */
int phantom_attribute(int attribute, int device, int *value) {
    const struct phantom_gpu *gpu = phantom_gpu(device);
    if (!gpu) return PHANTOM_INVALID_DEVICE;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrTotalConstantMemory: *value = 64 << 10; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMultiProcessorCount: *value = gpu->sms; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = gpu->threads_per_sm; break;
    case cudaDevAttrComputeCapabilityMajor: *value = gpu->major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = gpu->minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = shared_of(gpu, 0); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = shared_of(gpu, 1); break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = blocks_of(gpu); break;
    case cudaDevAttrPciBusId: *value = phantom_physical(device) + 1; break;
    case cudaDevAttrConcurrentKernels: case cudaDevAttrUnifiedAddressing: case cudaDevAttrManagedMemory:
    case cudaDevAttrStreamPrioritiesSupported: case cudaDevAttrCooperativeLaunch: case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrComputePreemptionSupported: *value = 1; break;
    case 102: *value = 1; break; /* virtual memory management, by which segments expand; the runtime has no name for it */
    default: *value = 0;
    }
    return 0;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    return phantom_attribute(attribute, device, value);
}

const char *phantom_bus_id(int device) {
    static char ids[PHANTOM_GPUS][20];
    int physical = phantom_physical(device);
    snprintf(ids[physical], sizeof ids[physical], "00000000:%02X:00.0", physical + 1);
    return ids[physical];
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    if (!phantom_gpu(device)) return cudaErrorInvalidDevice;
    snprintf(text, (size_t)length, "%s", phantom_bus_id(device));
    return 0;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer;
    return 0;
}
cudaError_t cudaDeviceSynchronize(void) {
    phantom_open_context(current);
    return 0;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return 0;
}
cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) {
    (void)limit;
    *value = 0;
    return 0;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return 0;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return 0;
}

cudaError_t cudaGetLastError(void) { return 0; } /* nothing is kept: whoever called was told at once */
cudaError_t cudaPeekAtLastError(void) { return 0; }
const char *cudaGetErrorName(cudaError_t error) {
    switch ((int)error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
    }
}
const char *cudaGetErrorString(cudaError_t error) {
    switch ((int)error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotSupported: return "operation not supported by the phantom GPU";
    default: return "unknown error";
    }
}

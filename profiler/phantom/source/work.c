/* Streams, events and launches: everything is done as soon as it is asked for, since nothing is done. */
#define _GNU_SOURCE
#include "phantom.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <string.h>

static atomic_uintptr_t handles = 0x1000; /* above the names of the default streams */

static void *handle(void) {
    phantom_open_context(phantom_device());
    return (void *)atomic_fetch_add(&handles, 16);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return *stream = handle(), cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    (void)flags;
    return *stream = handle(), cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
    (void)flags, (void)priority;
    return *stream = handle(), cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    (void)stream;
    return *priority = 0, cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    (void)stream;
    return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    (void)stream, (void)mode;
    return cudaErrorNotSupported; /* a graph replays kernels; there are none */
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned int flags) {
    (void)flags;
    callback(stream, cudaSuccess, data);
    return 0;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    (void)stream;
    function(data);
    return 0;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return *event = handle(), cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    (void)flags;
    return *event = handle(), cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    (void)from, (void)to;
    return *milliseconds = 0, cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
    (void)function;
    const struct phantom_gpu *gpu = phantom_gpu(phantom_device());
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024;
    found->numRegs = 32;
    found->maxDynamicSharedSizeBytes = 48 << 10;
    /* What the kernels were built for: 8.9 runs 8.6's, and CUB refuses a version that it was not compiled for. */
    int version = gpu->major == 8 && gpu->minor == 9 ? 86 : 10 * gpu->major + gpu->minor;
    found->binaryVersion = found->ptxVersion = version;
    return 0;
}

static int occupancy(int threads) {
    const struct phantom_gpu *gpu = phantom_gpu(phantom_device());
    int blocks = threads > 0 ? gpu->threads_per_sm / threads : 1;
    return blocks > 0 ? blocks : 1;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared) {
    (void)function, (void)shared;
    return *blocks = occupancy(threads), cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                   size_t shared, unsigned int flags) {
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}

cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
    (void)symbol;
    static void *somewhere;
    if (!somewhere) somewhere = phantom_reserve(phantom_device(), PHANTOM_GRANULE);
    *address = somewhere;
    return 0;
}

void **__cudaRegisterFatBinary(void *binary) {
    (void)binary;
    static void *registered;
    return &registered;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    (void)grid, (void)block, (void)shared, (void)stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = *block = (dim3){1, 1, 1};
    *shared = 0;
    *(void **)stream = NULL;
    return 0;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *entry) { return *kernel = (cudaKernel_t)entry, cudaSuccess; }

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *found, void *address) {
    (void)found, (void)address;
    return cudaErrorNotSupported;
}
cudaError_t cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t shared, unsigned int flags) {
    (void)address, (void)shared, (void)flags;
    return cudaErrorNotSupported;
}

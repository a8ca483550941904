/* cudaMalloc and its relatives: accounts and addresses, no memory.  What a kernel would have computed reads as zeros. */
#define _GNU_SOURCE
#include "phantom.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

int phantom_malloc(int device, void **address, uint64_t bytes) {
    uint64_t whole = (bytes + PHANTOM_GRANULE - 1) / PHANTOM_GRANULE * PHANTOM_GRANULE;
    *address = NULL;
    if (!bytes) return 0;
    if (whole < bytes || phantom_take(device, whole)) return PHANTOM_OUT_OF_MEMORY;
    *address = phantom_reserve(device, whole);
    if (*address) return 0;
    phantom_give(device, whole);
    return PHANTOM_OUT_OF_MEMORY;
}

int phantom_free_at(void *address) {
    if (!address) return 0;
    int device = phantom_owner(address);
    uint64_t bytes = phantom_release(address);
    if (!bytes) return PHANTOM_INVALID_VALUE;
    phantom_give(device, bytes);
    return 0;
}

void phantom_copy(void *to, const void *from, size_t bytes) {
    int to_host = phantom_owner(to) < 0, from_host = phantom_owner(from) < 0;
    if (!bytes || !to_host) return;
    if (from_host)
        memmove(to, from, bytes);
    else {
        memset(to, 0, bytes);
        phantom_read();
    }
}

cudaError_t cudaMalloc(void **address, size_t bytes) { return phantom_malloc(phantom_device(), address, bytes); }
cudaError_t cudaFree(void *address) {
    phantom_open_context(phantom_device()); /* cudaFree(0) is how programs ask for a context */
    return phantom_free_at(address);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = phantom_free(phantom_device());
    *total_bytes = phantom_gpu(phantom_device())->total_bytes;
    return 0;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    (void)kind;
    phantom_open_context(phantom_device());
    phantom_copy(to, from, bytes);
    return 0;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)stream;
    return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream) {
    (void)to, (void)to_device, (void)from, (void)from_device, (void)bytes, (void)stream;
    return 0;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    for (size_t row = 0; row < height; row++)
        cudaMemcpyAsync((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind, stream);
    return 0;
}
cudaError_t cudaMemset(void *address, int value, size_t bytes) {
    if (phantom_owner(address) < 0) memset(address, value, bytes);
    return 0;
}
cudaError_t cudaMemsetAsync(void *address, int value, size_t bytes, cudaStream_t stream) {
    (void)stream;
    return cudaMemset(address, value, bytes);
}

/* --- page-locked host memory: real memory, and a list by which torch knows it as such ----------------------------- */

static struct pinned {
    char *begin, *end;
    struct pinned *next;
} *pinned;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void remember(void *address, size_t bytes) {
    struct pinned *entry = malloc(sizeof *entry);
    if (!entry) abort();
    pthread_mutex_lock(&mutex);
    *entry = (struct pinned){address, (char *)address + bytes, pinned};
    pinned = entry;
    pthread_mutex_unlock(&mutex);
}

static void forget(void *address) {
    pthread_mutex_lock(&mutex);
    for (struct pinned **at = &pinned; *at; at = &(*at)->next)
        if ((*at)->begin == address) {
            struct pinned *gone = *at;
            *at = gone->next;
            free(gone);
            break;
        }
    pthread_mutex_unlock(&mutex);
}

int phantom_is_pinned(const void *address) {
    int found = 0;
    pthread_mutex_lock(&mutex);
    for (struct pinned *at = pinned; at && !found; at = at->next)
        found = (const char *)address >= at->begin && (const char *)address < at->end;
    pthread_mutex_unlock(&mutex);
    return found;
}

cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned int flags) {
    (void)flags;
    phantom_open_context(phantom_device());
    if (posix_memalign(address, 4096, bytes ? bytes : 1)) return cudaErrorMemoryAllocation;
    remember(*address, bytes);
    return 0;
}
cudaError_t cudaMallocHost(void **address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
cudaError_t cudaFreeHost(void *address) {
    forget(address);
    free(address);
    return 0;
}
cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned int flags) {
    (void)flags;
    remember(address, bytes);
    return 0;
}
cudaError_t cudaHostUnregister(void *address) {
    forget(address);
    return 0;
}
cudaError_t cudaHostGetDevicePointer(void **device_address, void *address, unsigned int flags) {
    (void)flags;
    *device_address = address;
    return 0;
}
cudaError_t cudaMallocManaged(void **address, size_t bytes, unsigned int flags) {
    return cudaHostAlloc(address, bytes, flags);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *address) {
    int device = phantom_owner(address);
    memset(found, 0, sizeof *found);
    found->device = device >= 0 ? device : phantom_device();
    found->type = device >= 0                  ? cudaMemoryTypeDevice
                  : phantom_is_pinned(address) ? cudaMemoryTypeHost
                                               : cudaMemoryTypeUnregistered;
    if (found->type != cudaMemoryTypeUnregistered) found->devicePointer = (void *)address;
    if (found->type == cudaMemoryTypeHost) found->hostPointer = (void *)address;
    return 0;
}

/* Device addresses: a range of this process's address space for each GPU, which nobody can read or write.
 *
 * They rise, and are the same in every run.  A driver's may rise or fall: recordings of H100s show both.  Where two free
 * blocks suit PyTorch's allocator equally it chooses by address, so a peak that max_memory_allocated shows can depend
 * on it, by what a block has over.  The range lies below where position-independent programs and libraries are put, so
 * that no host buffer is ever taken for device memory.
 */
#define _GNU_SOURCE
#include "phantom.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

#define FIRST ((uintptr_t)0x100000000000)   /* 16 TiB */
#define EACH ((uintptr_t)0x20000000000)     /* 2 TiB a GPU */

struct range {
    uintptr_t begin, end;
};

/* By address, for each GPU. */
static struct {
    struct range *taken;
    size_t count, room;
    uintptr_t next;
} spaces[PHANTOM_GPUS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

int phantom_owner(const void *address) {
    uintptr_t at = (uintptr_t)address;
    if (at < FIRST || at >= FIRST + EACH * PHANTOM_GPUS) return -1;
    int device = (int)((at - FIRST) / EACH);
    return spaces[device].next ? device : -1;
}

static size_t place_of(int device, uintptr_t at) {
    /* The number of ranges that begin at or below it. */
    size_t low = 0, high = spaces[device].count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (spaces[device].taken[middle].begin <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int gap(int device, uintptr_t begin, uint64_t bytes) {
    size_t place = place_of(device, begin);
    uintptr_t limit = FIRST + EACH * (uintptr_t)(device + 1);
    if (place < spaces[device].count) limit = spaces[device].taken[place].begin;
    if (place && spaces[device].taken[place - 1].end > begin) return 0;
    return begin + bytes <= limit;
}

static uintptr_t find(int device, uint64_t bytes) {
    if (gap(device, spaces[device].next, bytes)) return spaces[device].next;
    uintptr_t begin = FIRST + EACH * (uintptr_t)device + PHANTOM_GRANULE;
    if (gap(device, begin, bytes)) return begin;
    for (size_t i = 0; i < spaces[device].count; i++)
        if (gap(device, spaces[device].taken[i].end, bytes)) return spaces[device].taken[i].end;
    return 0;
}

void *phantom_reserve(int device, uint64_t bytes) {
    bytes = (bytes + PHANTOM_GRANULE - 1) / PHANTOM_GRANULE * PHANTOM_GRANULE;
    pthread_mutex_lock(&mutex);
    if (!spaces[device].next) {
        void *begin = (void *)(FIRST + EACH * (uintptr_t)device);
        void *got = mmap(begin, EACH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (got != begin) {
            if (got != MAP_FAILED) munmap(got, EACH); /* an old kernel takes the flag for a hint */
            pthread_mutex_unlock(&mutex);
            return NULL;
        }
        spaces[device].next = (uintptr_t)begin + PHANTOM_GRANULE;
    }
    uintptr_t begin = find(device, bytes);
    if (begin) {
        if (spaces[device].count == spaces[device].room) {
            spaces[device].room = spaces[device].room ? 2 * spaces[device].room : 64;
            spaces[device].taken = realloc(spaces[device].taken, spaces[device].room * sizeof(struct range));
            if (!spaces[device].taken) abort();
        }
        size_t place = place_of(device, begin);
        struct range *at = spaces[device].taken + place;
        memmove(at + 1, at, (spaces[device].count - place) * sizeof *at);
        *at = (struct range){begin, begin + bytes};
        spaces[device].count++;
        spaces[device].next = begin + bytes;
    }
    pthread_mutex_unlock(&mutex);
    return (void *)begin;
}

uint64_t phantom_release(void *address) {
    int device = phantom_owner(address);
    uint64_t bytes = 0;
    if (device < 0) return 0;
    pthread_mutex_lock(&mutex);
    size_t place = place_of(device, (uintptr_t)address);
    if (place && spaces[device].taken[place - 1].begin == (uintptr_t)address) {
        struct range *at = spaces[device].taken + place - 1;
        bytes = at->end - at->begin;
        memmove(at, at + 1, (spaces[device].count - place) * sizeof *at);
        spaces[device].count--;
    }
    pthread_mutex_unlock(&mutex);
    return bytes;
}

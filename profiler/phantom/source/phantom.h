/* What the parts of the phantom share: the GPUs it plays, and the accounts of who has how much of them.
 *
 * Every call of CUDA succeeds and does nothing; only memory is accounted for.  The accounts lie in a file that the
 * launcher wrote and names in NOOOM_PHANTOM: processes on one GPU add up in it, and NVML in another process reads it.
 */
#ifndef NOOOM_PHANTOM_H
#define NOOOM_PHANTOM_H

#include <stddef.h>
#include <stdint.h>

#define PHANTOM_GPUS 16
#define PHANTOM_PROCESSES 256
#define PHANTOM_GRANULE ((uint64_t)2 << 20) /* what the driver hands out physical memory in */

/* The layout is profiler/phantom/accounts.py's too. */
struct phantom_gpu {
    char name[64];
    uint8_t uuid[16];
    uint64_t total_bytes;   /* as torch reports it */
    uint64_t context_bytes; /* of each process, outside the allocator */
    int32_t major, minor, sms, threads_per_sm;
};

struct phantom_process {
    int32_t pid;       /* 0: the slot is free */
    int32_t ended;     /* 1: it said goodbye; its peaks are kept until the slot is needed */
    uint64_t started;  /* the kernel's start time, which tells a pid that is used again */
    uint64_t reads;    /* copies to the host whose content no kernel computed */
    uint64_t refusals; /* requests that found no room */
    uint64_t used_bytes[PHANTOM_GPUS]; /* its context included */
    uint64_t peak_bytes[PHANTOM_GPUS];
};

struct phantom_accounts {
    char magic[8];
    uint32_t layout;
    uint32_t gpus;
    struct phantom_gpu gpu[PHANTOM_GPUS];
    struct phantom_process process[PHANTOM_PROCESSES];
};

/* accounts.c */
struct phantom_accounts *phantom(void);
int phantom_gpus(void);                            /* how many this process may see */
const struct phantom_gpu *phantom_gpu(int device); /* NULL when there is no such device */
int phantom_physical(int device);                  /* its number in the accounts, after CUDA_VISIBLE_DEVICES */
void phantom_open_context(int device);
int phantom_has_context(int device);
int phantom_take(int device, uint64_t bytes); /* 0, or 1 when there is no room */
void phantom_give(int device, uint64_t bytes);
uint64_t phantom_used(int physical); /* by every process that lives */
uint64_t phantom_free(int device);
int phantom_alive(const struct phantom_process *process);
void phantom_read(void);

/* addresses.c */
void *phantom_reserve(int device, uint64_t bytes); /* addresses that nobody may touch; NULL when there are none left */
uint64_t phantom_release(void *address);           /* the size that was reserved there, or 0 */
int phantom_owner(const void *address);            /* the device whose address this is, or -1 */

/* memory.c */
int phantom_malloc(int device, void **address, uint64_t bytes);
int phantom_free_at(void *address);
void phantom_copy(void *to, const void *from, size_t bytes);
int phantom_is_pinned(const void *address);

/* devices.c */
int phantom_device(void); /* the calling thread's current device */
int phantom_attribute(int attribute, int device, int *value);
const char *phantom_bus_id(int device);

#define PHANTOM_OUT_OF_MEMORY 2
#define PHANTOM_INVALID_VALUE 1
#define PHANTOM_INVALID_DEVICE 101
#define PHANTOM_NOT_SUPPORTED 801

#endif

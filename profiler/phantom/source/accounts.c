/* Who has how much of which GPU, in a file that every process under one launcher maps. */
#define _GNU_SOURCE
#include "phantom.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct phantom_accounts *accounts;
static int file = -1;
static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int visible[PHANTOM_GPUS], visible_count;
static struct phantom_process *mine;
static uint8_t contexts[PHANTOM_GPUS]; /* by physical device */

static void fatal(const char *what, const char *path) {
    fprintf(stderr, "nooom phantom: %s %s: %s\n", what, path ? path : "", errno ? strerror(errno) : "");
    _exit(70);
}

static void see_devices(void) {
    /* CUDA_VISIBLE_DEVICES: numbers and UUIDs; the first that is neither hides the rest, as CUDA does it. */
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = 0;
    if (!wanted) {
        for (uint32_t i = 0; i < accounts->gpus; i++) visible[visible_count++] = (int)i;
        return;
    }
    char *list = strdup(wanted), *rest = NULL;
    for (char *word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        char *end = word;
        long number = strtol(word, &end, 10);
        while (*end == ' ') end++;
        if (end == word || *end) number = -1;
        if (number < 0 || number >= (long)accounts->gpus || visible_count == PHANTOM_GPUS) break;
        visible[visible_count++] = (int)number;
    }
    free(list);
}

static void goodbye(void) {
    if (mine && mine->pid == getpid()) {
        memset(mine->used_bytes, 0, sizeof mine->used_bytes);
        mine->ended = 1;
    }
}

static void forked(void) {
    /* A child has no context: CUDA can't be used on after a fork, and torch says so itself. */
    mine = NULL;
    memset(contexts, 0, sizeof contexts);
    pthread_mutex_init(&threads, NULL);
}

static void open_accounts(void) {
    const char *path = getenv("NOOOM_PHANTOM");
    errno = 0;
    if (!path) fatal("NOOOM_PHANTOM does not name the accounts", NULL);
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) fatal("can't open the accounts", path);
    accounts = mmap(NULL, sizeof *accounts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (accounts == MAP_FAILED) fatal("can't map the accounts", path);
    if (memcmp(accounts->magic, "nooomPH", 8) || accounts->layout != sizeof *accounts)
        fatal("these are not this version's accounts:", path);
    see_devices();
    pthread_atfork(NULL, NULL, forked);
    atexit(goodbye);
}

struct phantom_accounts *phantom(void) {
    pthread_once(&once, open_accounts);
    return accounts;
}

/* One lock for the threads of this process, and one for the processes; the kernel drops the second with its owner. */
static void lock(void) {
    phantom();
    pthread_mutex_lock(&threads);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    while (fcntl(file, F_SETLKW, &whole) && errno == EINTR) {}
}

static void unlock(void) {
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(file, F_SETLK, &whole);
    pthread_mutex_unlock(&threads);
}

static uint64_t start_time(int pid) {
    /* The 22nd field of /proc/PID/stat; the second is in parentheses and may hold anything. */
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = 0;
    char *place = strrchr(text, ')');
    if (place && (place[2] == 'Z' || place[2] == 'X')) return 0; /* a zombie holds no memory */
    for (int field = 2; place && field < 22; field++) place = strchr(place + 1, ' ');
    return place ? strtoull(place + 1, NULL, 10) : 0;
}

int phantom_alive(const struct phantom_process *process) {
    return process->pid && !process->ended && start_time(process->pid) == process->started;
}

static struct phantom_process *my_slot(void) {
    if (mine) return mine;
    struct phantom_process *slot = NULL;
    for (int i = 0; i < PHANTOM_PROCESSES && !slot; i++)
        if (!accounts->process[i].pid) slot = &accounts->process[i];
    for (int i = 0; i < PHANTOM_PROCESSES && !slot; i++)
        if (!phantom_alive(&accounts->process[i])) slot = &accounts->process[i];
    if (!slot) {
        errno = 0;
        fatal("more processes than its accounts have room for", NULL);
    }
    memset(slot, 0, sizeof *slot);
    slot->pid = getpid();
    slot->started = start_time(slot->pid);
    return mine = slot;
}

int phantom_gpus(void) {
    phantom();
    return visible_count;
}

int phantom_physical(int device) { return visible[device]; }

const struct phantom_gpu *phantom_gpu(int device) {
    return device >= 0 && device < phantom_gpus() ? &accounts->gpu[visible[device]] : NULL;
}

uint64_t phantom_used(int physical) {
    uint64_t used = 0;
    phantom();
    for (int i = 0; i < PHANTOM_PROCESSES; i++) {
        const struct phantom_process *process = &accounts->process[i];
        if (process->pid && process->used_bytes[physical] && (process == mine || phantom_alive(process)))
            used += process->used_bytes[physical];
    }
    return used;
}

static int take(int physical, uint64_t bytes, int even_so) {
    struct phantom_process *slot = my_slot();
    if (!even_so && phantom_used(physical) + bytes > accounts->gpu[physical].total_bytes) {
        slot->refusals++;
        return 1;
    }
    slot->used_bytes[physical] += bytes;
    if (slot->used_bytes[physical] > slot->peak_bytes[physical]) slot->peak_bytes[physical] = slot->used_bytes[physical];
    return 0;
}

static void open_context(int physical) {
    if (contexts[physical]) return;
    contexts[physical] = 1;
    take(physical, accounts->gpu[physical].context_bytes, 1);
}

void phantom_open_context(int device) {
    if (!phantom_gpu(device) || contexts[visible[device]]) return;
    lock();
    open_context(visible[device]);
    unlock();
}

int phantom_has_context(int device) { return phantom_gpu(device) && contexts[visible[device]]; }

int phantom_take(int device, uint64_t bytes) {
    lock();
    open_context(visible[device]);
    int full = take(visible[device], bytes, 0);
    unlock();
    return full;
}

void phantom_give(int device, uint64_t bytes) {
    lock();
    my_slot()->used_bytes[visible[device]] -= bytes;
    unlock();
}

uint64_t phantom_free(int device) {
    lock();
    open_context(visible[device]);
    uint64_t used = phantom_used(visible[device]), total = accounts->gpu[visible[device]].total_bytes;
    unlock();
    return used < total ? total - used : 0;
}

void phantom_read(void) {
    lock();
    my_slot()->reads++;
    unlock();
}

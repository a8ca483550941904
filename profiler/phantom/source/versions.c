/* Calls whose parameters changed from one CUDA to the next: no prototypes are included here, and only the parameters
 * that stayed are touched. */
#define _GNU_SOURCE
#include "phantom.h"

#include <dlfcn.h>

int cudaStreamGetCaptureInfo(void *stream, int *status, ...) { return (void)stream, *status = 0; }
int cudaStreamGetCaptureInfo_v2(void *stream, int *status, ...) { return (void)stream, *status = 0; }
int cudaStreamGetCaptureInfo_v3(void *stream, int *status, ...) { return (void)stream, *status = 0; }

static int nothing(void) { return 0; }

/* The phantom's own function of that name; where there is none, one that succeeds and does nothing. */
void *phantom_function(const char *name) {
    static const char *const suffixes[] = {"_v4", "_v3", "_v2", ""};
    static void *self;
    if (!self) {
        Dl_info info;
        dladdr((void *)nothing, &info);
        self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    for (unsigned i = 0; self && i < sizeof suffixes / sizeof *suffixes; i++) {
        char text[128];
        char *end = text;
        for (const char *at = name; *at && end < text + 120; at++) *end++ = *at;
        for (const char *at = suffixes[i]; *at; at++) *end++ = *at;
        *end = 0;
        void *found = dlsym(self, text);
        if (found) return found;
    }
    return (void *)nothing;
}

int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
    (void)flags;
    if (status) *status = 0;
    return *function = phantom_function(name), 0;
}
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                     int *status) {
    (void)version;
    return cudaGetDriverEntryPoint(name, function, flags, status);
}
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    (void)version, (void)flags;
    return *function = phantom_function(name), 0;
}
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    if (status) *status = 0;
    return cuGetProcAddress(name, function, version, flags);
}

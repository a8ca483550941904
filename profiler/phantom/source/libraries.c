/* cuBLAS, cuBLASLt and cuDNN: handles that are not null, and the few answers that their callers look at.
 *
 * torch gives cuBLAS its workspace out of its own allocator, so what these libraries would allocate is accounted for
 * already.  No prototypes are included: only pointers and integers are touched.
 */
#include "phantom.h"

#include <stdatomic.h>
#include <string.h>

static int token;

/* Each handle is another one: torch gives each (handle, stream) a workspace of its own. */
static atomic_uintptr_t handles = 0x10000;
#define HANDLE(name) \
    int name(void **handle) { return *handle = (void *)atomic_fetch_add(&handles, 64), 0; }

HANDLE(cublasCreate_v2)
HANDLE(cublasLtCreate)
HANDLE(cublasLtMatmulPreferenceCreate)
HANDLE(cudnnCreate)
HANDLE(cusparseCreate)
HANDLE(cusolverDnCreate)

int cublasGetPointerMode_v2(void *handle, int *mode) { return (void)handle, *mode = 0; } /* on the host */
int cublasGetMathMode(void *handle, int *mode) { return (void)handle, *mode = 0; }
int cublasLtMatmulDescCreate(void **description, int compute, int scale) {
    return (void)compute, (void)scale, *description = &token, 0;
}
int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    return (void)type, (void)rows, (void)columns, (void)leading, *layout = &token, 0;
}

/* One algorithm that needs no workspace: callers have taken theirs before they ask. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, void *results, int *found) {
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    if (wanted > 0) memset(results, 0, 64 + 8 + 4); /* the algorithm, its workspace, its state */
    return *found = wanted > 0, 0;
}

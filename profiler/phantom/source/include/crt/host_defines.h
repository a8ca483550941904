/* What CUDA's own headers want of a compiler.  NVIDIA's file of this name comes with nvcc, which torch's wheels lack;
 * the host side needs no more of it than these empty words. */
#ifndef NOOOM_HOST_DEFINES_H
#define NOOOM_HOST_DEFINES_H
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDAAPI
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __grid_constant__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __annotate__(a) __attribute__((a))
#define __location__(a) __annotate__(a)
#define __builtin_align__(n) __align__(n)
#define __thread__ __thread
#define __import__
#define __export__
#define __specialization_static
#define __CUDA_ARCH_HAS_FEATURE__(x) 0
#endif

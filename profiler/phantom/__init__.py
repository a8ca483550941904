"""The phantom GPU: the ordinary CUDA build of PyTorch on a GPU that isn't there.

A small library, loaded before everything else, answers CUDA's calls: each succeeds and does nothing, and only memory is
accounted for.  What runs on top is untouched: PyTorch's caching allocator, its kernels' own allocation code, its
``max_memory_allocated``.  What no kernel computed reads as zeros.  docs/phantom.md says what that can and can't show.
"""

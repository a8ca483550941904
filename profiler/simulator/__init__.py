"""The dry run's own parts: what CUDA would choose and allocate for tensors that are not there, and its allocator."""

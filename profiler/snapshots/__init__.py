"""PyTorch's memory snapshots: read with distrust, replayed through the simulated allocator, compared, written."""

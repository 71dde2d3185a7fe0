"""Triton kernels to cubins, built by worker processes."""

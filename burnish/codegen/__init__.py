"""Kernels as source text. Nothing here uses a device or a compiler, so it is tested without either."""

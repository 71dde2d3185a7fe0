"""Kernels as source. Pure: nothing here touches a device or a compiler, so it is tested without either."""

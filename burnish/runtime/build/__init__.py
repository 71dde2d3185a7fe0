"""C source to a loaded library."""

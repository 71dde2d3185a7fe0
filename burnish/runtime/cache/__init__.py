"""The cache on disk, and its contents."""

"""The cache on disk, and what is kept in it."""

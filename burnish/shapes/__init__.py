"""Variable sizes: strategies, traffic and buckets; which dimensions of a program's inputs may be padded, and what its
results then are."""

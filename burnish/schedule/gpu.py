"""What decisions about a GPU reckon with."""

MULTIPROCESSORS = 132  # of an H100 or H200; what matters is the order of magnitude
MOST_TILES = 4 * MULTIPROCESSORS  # of 64 x 64: with more, throughput decides and not latency

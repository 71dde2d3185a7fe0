"""Sizes that vary from call to call: strategies, traffic, buckets, and the proof that padding is safe."""

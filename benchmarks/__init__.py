"""Measurements behind docs/benchmarks.md: `python -m benchmarks.core`, then `python -m benchmarks.readme`."""

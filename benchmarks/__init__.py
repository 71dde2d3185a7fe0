"""Measurements behind the README's numbers: `python -m benchmarks.core`, then `python -m benchmarks.readme`."""

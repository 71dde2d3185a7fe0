"""Choices that only a CPU's program has."""

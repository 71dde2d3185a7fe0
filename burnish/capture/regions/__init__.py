"""Repeated blocks of a model: traced once, copied for the others."""

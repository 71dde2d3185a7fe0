"""Passes over a GPU's schedule, and who computes its products, convolutions and attention."""

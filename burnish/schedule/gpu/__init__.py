"""Passes over a GPU's schedule, and backend selection for its products, convolutions and attention."""

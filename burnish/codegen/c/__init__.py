"""Schedule to C."""

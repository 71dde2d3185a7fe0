"""Schedule to Triton."""

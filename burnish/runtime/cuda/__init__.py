"""Programs on an NVIDIA GPU: launches and CUDA graphs."""

"""From Graph to Schedule: decides what is stored, what is fused, and the memory layout."""

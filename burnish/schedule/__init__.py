"""From Graph to Schedule: what is stored, what is fused, where it lives."""

"""Forward and backward: how a graph is split, what is saved between the two, and gradients of gradients."""

"""Calls of varying sizes (`burnish.compile(model, shapes=...)`): padded to the sizes that programs exist for."""

"""The path of a call: through TorchDynamo, around it, or directly to compiled code."""

"""The way of a call: into TorchDynamo, past it, or straight to compiled code."""

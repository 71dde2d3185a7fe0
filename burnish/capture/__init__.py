"""From Python to a graph: TorchDynamo, AOTAutograd and everything else of torch's that is private, in one package."""

"""From Python to graphs: TorchDynamo, AOTAutograd, and the path of each call. docs/layout.md lists the packages by
stage."""

"""From Python to graphs: TorchDynamo, AOTAutograd, and the way of each call. Packages by stage, in docs/layout.md."""

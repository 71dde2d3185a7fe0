"""The representations of a model before source: expressions, graph, body."""

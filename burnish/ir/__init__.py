"""The representations a model passes through before it is source: expressions, graph, body."""

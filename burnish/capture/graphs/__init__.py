"""Facts about a captured graph, and corrections so that it follows eager's semantics."""

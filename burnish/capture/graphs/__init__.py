"""What is known of a captured graph, and how it is made to mean what eager does."""

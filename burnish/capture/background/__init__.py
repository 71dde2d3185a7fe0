"""Compiling beside the calls: frames kept for later, and the thread that compiles them."""

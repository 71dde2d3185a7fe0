"""Host-side work of a call, in C if there is a compiler: checks, addresses, calling conventions."""

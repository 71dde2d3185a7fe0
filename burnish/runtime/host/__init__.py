"""The host's part of a call, in C where there is a compiler: checks, addresses, calling conventions."""

"""The runtime of compiled programs: the cache on disk, the build with the system's C compiler, and the program
itself."""

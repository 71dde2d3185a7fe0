"""Tools around the compiler: measuring, checking, explaining, the command line. The compiler imports none of them."""

"""The command line's arguments, one command a file. Nothing here imports torch before a command runs: `burnish --help`
must be instant."""

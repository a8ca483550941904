"""One file a command: what it does once the command line is parsed."""

"""Framework of the command line: command list, errors, argument types."""

"""Commands of the command line, one each."""

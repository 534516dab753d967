"""One file per command of the command line that is not training."""

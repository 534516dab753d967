"""The training command line."""

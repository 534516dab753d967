"""Everything that knows Lightning: what is trained, on which data, from which command line."""

"""Metrics over a whole split, exact for any batch size and any number of processes."""

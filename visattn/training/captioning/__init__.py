"""Training of captioners."""

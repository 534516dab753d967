"""Training of object detectors."""

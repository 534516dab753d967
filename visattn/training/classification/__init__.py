"""Training of image classifiers."""

"""Training of segmentation models."""

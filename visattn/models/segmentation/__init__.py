"""Segmentation networks."""

"""Retina-like glimpses and scan paths."""

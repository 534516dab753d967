"""Grids, text and GIF files."""

"""Attention over channels and places at once."""

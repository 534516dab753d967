"""Losses, beam search and sampling of captioners."""

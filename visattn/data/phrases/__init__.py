"""Phrases of captions and their boxes."""

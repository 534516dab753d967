"""Attention over rows of tokens: words, patches, or the places of a grid in a row."""

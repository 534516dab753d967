"""Encoder features computed once and kept on disk."""

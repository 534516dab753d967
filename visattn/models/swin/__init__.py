"""Hierarchical transformers with shifted windows, and conversions of Swin weights."""

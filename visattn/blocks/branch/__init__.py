"""Attention over branches: selective kernels and split attention."""

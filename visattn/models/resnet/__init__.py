"""Residual networks with attention."""

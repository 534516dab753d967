"""Spatial attention: spatial gates, attention gates, Spatial Transformer."""

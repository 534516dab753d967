"""Samplers and loaders that resume exactly."""

"""Captioners: Show, Attend and Tell."""

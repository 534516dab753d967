"""Checkpoints: read safely, written atomically."""

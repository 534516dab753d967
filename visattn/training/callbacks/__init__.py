"""Callbacks: EMA, image logging, guards, checkpoints."""

"""Attention blocks: modules that hold parameters and show their map through one Tap."""

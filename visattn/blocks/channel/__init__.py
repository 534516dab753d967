"""Attention over channels: one gate per channel, the same at all places."""

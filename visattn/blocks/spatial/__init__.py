"""Attention over places: one gate per place, the same for all channels; or another view of them."""

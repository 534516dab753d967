"""Attention of recurrent decoders: additive (Bahdanau) and Luong."""

"""Data sets and pictures, in plain torch, numpy and Pillow."""

"""Scenes: a procedural data set whose captions can be checked word by word."""

"""Whole networks made of blocks, each with a narrow base class."""

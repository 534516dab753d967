"""Audit of a data set: where a model finds its evidence, and what of it changes predictions."""

"""Datasets for classification."""

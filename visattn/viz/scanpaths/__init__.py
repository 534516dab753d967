"""Scan paths of glimpse models."""

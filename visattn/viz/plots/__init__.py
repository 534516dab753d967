"""Plots of attention statistics."""

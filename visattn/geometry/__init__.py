"""Coordinate transforms between network inputs and original images."""

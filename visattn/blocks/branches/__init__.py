"""Attention over branches: several convolutions, each heard as much as the picture asks for."""

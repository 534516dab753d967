"""Recurrent attention model: glimpses chosen by a learned policy."""

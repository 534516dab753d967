"""Panels and animations of captions."""

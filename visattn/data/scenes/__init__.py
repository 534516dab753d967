"""Synthetic scenes, whose captions, boxes and masks are known exactly."""

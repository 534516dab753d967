"""Scenes: drawn images whose captions and boxes are known exactly."""

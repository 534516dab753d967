"""Figures of detections: boxes, and what each query attended to."""

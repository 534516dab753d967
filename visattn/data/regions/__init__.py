"""Images with annotated objects: boxes, masks and label maps."""

"""COCO instances, masks and saved maps."""

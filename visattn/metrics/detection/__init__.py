"""Average precision of object detection."""

"""Sources and batches for image classification and digit sequences."""

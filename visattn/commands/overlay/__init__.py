"""`visattn overlay`."""

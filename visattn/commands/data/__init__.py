"""`visattn data`."""

"""`visattn caption`."""

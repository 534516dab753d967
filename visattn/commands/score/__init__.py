"""`visattn score`."""

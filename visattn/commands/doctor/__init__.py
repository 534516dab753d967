"""`visattn doctor`."""

"""Audits of photos: the command and its job."""

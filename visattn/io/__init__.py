"""Files: atomic writing, and safe reading of untrusted content."""

"""Reading, checking, resizing and augmenting images."""

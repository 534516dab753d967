"""Training of visual question answering models."""

"""Training of glimpse models."""

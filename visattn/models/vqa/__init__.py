"""Visual question answering models and their question encoders."""

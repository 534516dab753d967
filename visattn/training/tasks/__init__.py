"""Lightning modules: captioning, classification, glimpses."""

"""Self-attention for CNNs: non-local, DANet, criss-cross, double attention, BoTNet."""

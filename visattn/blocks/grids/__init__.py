"""Self-attention on grids: what each place takes from the others."""

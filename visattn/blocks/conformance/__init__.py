"""What every attention block for CNNs must stand, ours or another library's."""

"""What benchmark.py times beside captioners: the blocks."""

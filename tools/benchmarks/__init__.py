"""Benchmarks that `tools/benchmark.py` runs."""

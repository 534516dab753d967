"""Run folders."""

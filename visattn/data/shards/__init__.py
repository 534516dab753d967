"""Shards: tar files with an index, read in any order."""

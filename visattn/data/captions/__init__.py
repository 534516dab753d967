"""Caption files, vocabularies and datasets."""

"""Questions about images: generators, readers and batches."""

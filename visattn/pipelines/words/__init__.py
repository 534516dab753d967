"""Word maps of vision-language models: generate, replay once recorded, place on the photo."""

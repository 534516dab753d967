"""Word maps of vision-language models: place image tokens, generate with rows recorded, draw."""

"""Word maps of vision-language models: locate image tokens, record attention, draw maps."""

"""Class activation maps, attention rollout and relevance."""

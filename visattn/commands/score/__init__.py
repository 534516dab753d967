"""`visattn score`: score captions or maps."""

from visattn.commands.score.captions import score_captions
from visattn.commands.score.maps import score_maps

SCORES = {"captions": score_captions, "maps": score_maps}
"""Subcommands."""

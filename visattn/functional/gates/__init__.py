"""Gates of channel, spatial, combined and branch attention."""

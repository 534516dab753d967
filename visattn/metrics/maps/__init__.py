"""Localization, faithfulness and sanity checks of attention maps."""

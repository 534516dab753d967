"""Localization and faithfulness of maps."""

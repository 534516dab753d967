"""Restores process-wide settings that a tool changes."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _level_of_lightning() -> Iterator[None]:
    """Restore Lightning's log level, which benchmarks change."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    yield
    logger.setLevel(level)

"""Attention for models that were not made for it: put in, taken out, made plain, counted."""

from visattn.blocks.surgery.bakings import bake, remove, unbaked
from visattn.blocks.surgery.insertions import Insertion, insert
from visattn.blocks.surgery.tables import Table, table

__all__ = ["Insertion", "Table", "bake", "insert", "remove", "table", "unbaked"]

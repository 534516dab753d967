"""Attention maps: recorded, placed on the picture they were made from, measured."""

from visattn.maps.attention_maps import AttentionMap
from visattn.maps.geometries import Geometry
from visattn.maps.recorders import record

__all__ = ["AttentionMap", "Geometry", "record"]

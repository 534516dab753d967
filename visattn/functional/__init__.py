"""Attention, captioning losses and REINFORCE as plain functions of tensors."""

# pyright: standard
# lazy_loader has no type stubs; the types of the names are in __init__.pyi.
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

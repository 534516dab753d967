"""Backbones of timm, torchvision and Hugging Face."""

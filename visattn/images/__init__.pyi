from .resize import (
    ResizeSpec as ResizeSpec,
)

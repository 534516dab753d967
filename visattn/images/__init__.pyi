from .reader import (
    LoadedImage as LoadedImage,
    list_images as list_images,
)
from .resize import (
    ResizeSpec as ResizeSpec,
)
from .sources import (
    find_images as find_images,
)
from .video import (
    VideoError as VideoError,
)

from .reader import (
    ImageError as ImageError,
    LoadedImage as LoadedImage,
    find_images as find_images,
    list_images as list_images,
    read_image as read_image,
)
from .resize import (
    ResizeSpec as ResizeSpec,
)
from .video import (
    VideoError as VideoError,
)

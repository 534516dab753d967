from .reader import (
    ImageError as ImageError,
    LoadedImage as LoadedImage,
    list_images as list_images,
    read_image as read_image,
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

from .augment import (
    Affine as Affine,
    Augmentation as Augmentation,
    PerImageTransform as PerImageTransform,
    RandomHorizontalFlip as RandomHorizontalFlip,
    RandomTranslate as RandomTranslate,
    build_augmentation as build_augmentation,
)
from .integrity import (
    count_jpeg_scans as count_jpeg_scans,
    png_rows_missing as png_rows_missing,
)
from .reader import (
    ImageError as ImageError,
    ImageLike as ImageLike,
    LoadedImage as LoadedImage,
    find_images as find_images,
    list_images as list_images,
    read_image as read_image,
    read_size as read_size,
)
from .resize import (
    ResizeSpec as ResizeSpec,
    resize_geometry as resize_geometry,
    resize_to_input as resize_to_input,
)
from .rgb import (
    from_array as from_array,
    to_rgb as to_rgb,
)

from .augment import (
    Affine as Affine,
)
from .augment import (
    Augmentation as Augmentation,
)
from .augment import (
    EachAlone as EachAlone,
)
from .augment import (
    RandomHorizontalFlip as RandomHorizontalFlip,
)
from .augment import (
    RandomTranslate as RandomTranslate,
)
from .augment import (
    augmentation as augmentation,
)
from .integrity import (
    rows_missing as rows_missing,
)
from .integrity import (
    scan_count as scan_count,
)
from .reader import (
    ImageError as ImageError,
)
from .reader import (
    LoadedImage as LoadedImage,
)
from .reader import (
    find_images as find_images,
)
from .reader import (
    read_image as read_image,
)
from .reader import (
    read_size as read_size,
)
from .resize import (
    ResizeSpec as ResizeSpec,
)
from .resize import (
    frame as frame,
)
from .resize import (
    framed_geometry as framed_geometry,
)
from .rgb import (
    from_array as from_array,
)
from .rgb import (
    to_rgb as to_rgb,
)

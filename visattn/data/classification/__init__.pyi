from .cluttered_mnist import (
    ClutteredMNIST as ClutteredMNIST,
)
from .cluttered_mnist import (
    ClutterSpec as ClutterSpec,
)
from .cluttered_mnist import (
    Placements as Placements,
)
from .cluttered_mnist import (
    lay as lay,
)
from .datasets import (
    FramedPhotos as FramedPhotos,
)
from .datasets import (
    HeldImages as HeldImages,
)
from .datasets import (
    LabeledBatch as LabeledBatch,
)
from .datasets import (
    LabeledImages as LabeledImages,
)
from .datasets import (
    class_folders as class_folders,
)
from .datasets import (
    labeled_files as labeled_files,
)
from .torchvision_sets import (
    check_digits as check_digits,
)
from .torchvision_sets import (
    idx_shape as idx_shape,
)
from .torchvision_sets import (
    read_torchvision as read_torchvision,
)

from .cluttered_mnist import (
    ClutteredMNIST as ClutteredMNIST,
    ClutterSpec as ClutterSpec,
    Placements as Placements,
    paste as paste,
)
from .datasets import (
    ImageFiles as ImageFiles,
    InMemoryImages as InMemoryImages,
    LabeledBatch as LabeledBatch,
    LabeledImages as LabeledImages,
    find_classes as find_classes,
    list_labeled_files as list_labeled_files,
)
from .torchvision_sets import (
    check_mnist_files as check_mnist_files,
    load_torchvision as load_torchvision,
    read_idx_shape as read_idx_shape,
)

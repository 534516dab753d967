from .cluttered_mnist import (
    ClutteredMNIST as ClutteredMNIST,
    ClutterSpec as ClutterSpec,
    Placements as Placements,
    crop_patches as crop_patches,
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
from .digit_sequences import (
    IGNORE_LABEL as IGNORE_LABEL,
    DigitPlacements as DigitPlacements,
    DigitSequenceBatch as DigitSequenceBatch,
    DigitSequences as DigitSequences,
    DigitSequenceSpec as DigitSequenceSpec,
    ink_boxes as ink_boxes,
)
from .torchvision_sets import (
    check_mnist_files as check_mnist_files,
    load_torchvision as load_torchvision,
    read_idx_shape as read_idx_shape,
)

from .captions import (
    CaptionDataModule as CaptionDataModule,
    CaptionedImagesDataModule as CaptionedImagesDataModule,
)
from .classification import (
    ClassificationDataModule as ClassificationDataModule,
)
from .cluttered_mnist import (
    ClutteredMNISTDataModule as ClutteredMNISTDataModule,
)
from .digit_sequences import (
    DigitSequenceDataModule as DigitSequenceDataModule,
)
from .fallback import (
    ReadFallbackDataModule as ReadFallbackDataModule,
)
from .folder import (
    FolderDataModule as FolderDataModule,
)
from .scenes import (
    ScenesDataModule as ScenesDataModule,
    SingleObjectDataModule as SingleObjectDataModule,
)
from .shards import (
    ShardCaptionDataModule as ShardCaptionDataModule,
    ShardClassificationDataModule as ShardClassificationDataModule,
    open_shards as open_shards,
    read_word_counts as read_word_counts,
)
from .torchvision import (
    TorchvisionDataModule as TorchvisionDataModule,
)
from .webdataset import (
    WebDatasetCaptionDataModule as WebDatasetCaptionDataModule,
    WebDatasetClassificationDataModule as WebDatasetClassificationDataModule,
    concatenate_batches as concatenate_batches,
    stream_loader as stream_loader,
    to_caption_sample as to_caption_sample,
    to_labeled_batch as to_labeled_batch,
)

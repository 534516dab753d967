from .captions import (
    CaptionDataModule as CaptionDataModule,
)
from .captions import (
    CaptionedImagesDataModule as CaptionedImagesDataModule,
)
from .classification import (
    ClassificationDataModule as ClassificationDataModule,
)
from .cluttered_mnist import (
    ClutteredMNISTDataModule as ClutteredMNISTDataModule,
)
from .fallback import (
    ReadFallbackDataModule as ReadFallbackDataModule,
)
from .folder import (
    FolderDataModule as FolderDataModule,
)
from .scenes import (
    ScenesDataModule as ScenesDataModule,
)
from .scenes import (
    SingleObjectDataModule as SingleObjectDataModule,
)
from .shards import (
    ShardCaptionDataModule as ShardCaptionDataModule,
)
from .shards import (
    ShardClassificationDataModule as ShardClassificationDataModule,
)
from .shards import (
    open_shards as open_shards,
)
from .shards import (
    read_word_counts as read_word_counts,
)
from .torchvision import (
    TorchvisionDataModule as TorchvisionDataModule,
)
from .webdataset import (
    WebDatasetCaptionDataModule as WebDatasetCaptionDataModule,
)
from .webdataset import (
    WebDatasetClassificationDataModule as WebDatasetClassificationDataModule,
)
from .webdataset import (
    concatenate_batches as concatenate_batches,
)
from .webdataset import (
    stream_loader as stream_loader,
)
from .webdataset import (
    to_caption_sample as to_caption_sample,
)
from .webdataset import (
    to_labeled_batch as to_labeled_batch,
)

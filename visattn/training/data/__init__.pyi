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
from .shards import (
    ShardCaptionDataModule as ShardCaptionDataModule,
)
from .shards import (
    ShardClassificationDataModule as ShardClassificationDataModule,
)
from .shards import (
    counted_words as counted_words,
)
from .shards import (
    opened as opened,
)
from .single_object_scenes import (
    SingleObjectDataModule as SingleObjectDataModule,
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
    joined as joined,
)
from .webdataset import (
    labeled_sample as labeled_sample,
)
from .webdataset import (
    loader as loader,
)
from .webdataset import (
    told_sample as told_sample,
)

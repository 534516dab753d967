from .callbacks.attention_logging import (
    AttentionLogger as AttentionLogger,
)
from .callbacks.ema import (
    EMA as EMA,
)
from .callbacks.image_logging import (
    CaptionPanels as CaptionPanels,
    CropPanels as CropPanels,
    SegmentationPanels as SegmentationPanels,
)
from .callbacks.nonfinite_guard import (
    SkipNonFiniteSteps as SkipNonFiniteSteps,
)
from .captioning.hard import (
    HardAttentionTask as HardAttentionTask,
)
from .captioning.scst import (
    SCSTTask as SCSTTask,
)
from .captioning.task import (
    CaptioningTask as CaptioningTask,
)
from .classification.task import (
    ClassificationTask as ClassificationTask,
)
from .data.captions import (
    CaptionDataModule as CaptionDataModule,
    CaptionedImagesDataModule as CaptionedImagesDataModule,
)
from .data.classification import (
    ClassificationDataModule as ClassificationDataModule,
)
from .data.cluttered_mnist import (
    ClutteredMNISTDataModule as ClutteredMNISTDataModule,
)
from .data.detection import (
    CocoDetectionDataModule as CocoDetectionDataModule,
    DetectionDataModule as DetectionDataModule,
    ScenesDetectionDataModule as ScenesDetectionDataModule,
)
from .data.digit_sequences import (
    DigitSequenceDataModule as DigitSequenceDataModule,
)
from .data.folder import (
    FolderDataModule as FolderDataModule,
)
from .data.questions import (
    QuestionDataModule as QuestionDataModule,
    SceneQuestionsDataModule as SceneQuestionsDataModule,
    SortOfClevrDataModule as SortOfClevrDataModule,
)
from .data.scenes import (
    ScenesDataModule as ScenesDataModule,
    SingleObjectDataModule as SingleObjectDataModule,
)
from .data.segmentation import (
    CocoSegmentationDataModule as CocoSegmentationDataModule,
    MaskFolderDataModule as MaskFolderDataModule,
    SceneSegmentationDataModule as SceneSegmentationDataModule,
    SegmentationDataModule as SegmentationDataModule,
)
from .data.shards import (
    ShardCaptionDataModule as ShardCaptionDataModule,
    ShardClassificationDataModule as ShardClassificationDataModule,
)
from .data.torchvision import (
    TorchvisionDataModule as TorchvisionDataModule,
)
from .data.vqa import (
    VQADataModule as VQADataModule,
)
from .data.webdataset import (
    WebDatasetCaptionDataModule as WebDatasetCaptionDataModule,
    WebDatasetClassificationDataModule as WebDatasetClassificationDataModule,
)
from .data_module import (
    DataModule as DataModule,
)
from .detection.task import (
    DetectionTask as DetectionTask,
)
from .glimpses.task import (
    GlimpseTask as GlimpseTask,
)
from .optim import (
    OptimConfig as OptimConfig,
    cosine as cosine,
    trapezoid as trapezoid,
)
from .questions.task import (
    QuestionTask as QuestionTask,
)
from .segmentation.task import (
    SegmentationTask as SegmentationTask,
)
from .sequences.task import (
    SequenceRecognitionTask as SequenceRecognitionTask,
)
from .task import (
    Task as Task,
    connect as connect,
)

from .callbacks import (
    EMA as EMA,
)
from .captioning.data import (
    CaptionDataModule as CaptionDataModule,
    CaptionedImagesDataModule as CaptionedImagesDataModule,
    HubCaptionDataModule as HubCaptionDataModule,
    ScenesDataModule as ScenesDataModule,
)
from .captioning.hard import (
    HardAttentionTask as HardAttentionTask,
)
from .captioning.relaxed import (
    RelaxedPlaces as RelaxedPlaces,
)
from .captioning.scst import (
    SCSTTask as SCSTTask,
)
from .captioning.task import (
    CaptioningTask as CaptioningTask,
)
from .classification.data import (
    ClassificationDataModule as ClassificationDataModule,
    ClutteredMNISTDataModule as ClutteredMNISTDataModule,
    FolderDataModule as FolderDataModule,
    HubClassificationDataModule as HubClassificationDataModule,
    SingleObjectDataModule as SingleObjectDataModule,
    TorchvisionDataModule as TorchvisionDataModule,
)
from .classification.task import (
    ClassificationTask as ClassificationTask,
)
from .data_module import (
    DataModule as DataModule,
)
from .detection.data import (
    CocoDetectionDataModule as CocoDetectionDataModule,
    DetectionDataModule as DetectionDataModule,
    HubDetectionDataModule as HubDetectionDataModule,
    ScenesDetectionDataModule as ScenesDetectionDataModule,
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
from .panels import (
    AttentionLogger as AttentionLogger,
    CaptionPanels as CaptionPanels,
    CropPanels as CropPanels,
    SegmentationPanels as SegmentationPanels,
)
from .questions.data import (
    HubVQADataModule as HubVQADataModule,
    QuestionDataModule as QuestionDataModule,
    SortOfClevrDataModule as SortOfClevrDataModule,
    VQADataModule as VQADataModule,
)
from .questions.task import (
    QuestionTask as QuestionTask,
)
from .segmentation.data import (
    CocoSegmentationDataModule as CocoSegmentationDataModule,
    MaskFolderDataModule as MaskFolderDataModule,
    SceneSegmentationDataModule as SceneSegmentationDataModule,
    SegmentationDataModule as SegmentationDataModule,
)
from .segmentation.task import (
    SegmentationTask as SegmentationTask,
)
from .sequences.data import (
    DigitSequenceDataModule as DigitSequenceDataModule,
)
from .sequences.task import (
    SequenceRecognitionTask as SequenceRecognitionTask,
)
from .task import (
    Task as Task,
    connect as connect,
)

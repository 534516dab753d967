from .callbacks import (
    EMA as EMA,
)
from .captioning.data import (
    CaptionData as CaptionData,
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
    ClassificationData as ClassificationData,
)
from .classification.task import (
    ClassificationTask as ClassificationTask,
)
from .detection.data import (
    DetectionData as DetectionData,
)
from .detection.task import (
    DetectionTask as DetectionTask,
)
from .glimpses.task import (
    GlimpseTask as GlimpseTask,
)
from .metrics import (
    Evaluation as Evaluation,
    Means as Means,
)
from .optim import (
    cosine as cosine,
)
from .panels import (
    AttentionLogger as AttentionLogger,
    CaptionPanels as CaptionPanels,
    CropPanels as CropPanels,
    SegmentationPanels as SegmentationPanels,
)
from .questions.data import (
    QuestionData as QuestionData,
)
from .questions.task import (
    QuestionTask as QuestionTask,
)
from .segmentation.data import (
    SegmentationData as SegmentationData,
)
from .segmentation.task import (
    SegmentationTask as SegmentationTask,
)
from .sequences.data import (
    SequenceData as SequenceData,
)
from .sequences.task import (
    SequenceRecognitionTask as SequenceRecognitionTask,
)
from .task import (
    Task as Task,
)

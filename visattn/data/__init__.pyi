from .captions.batch import (
    Vocabulary as Vocabulary,
)
from .captions.files import (
    CaptionFile as CaptionFile,
)
from .classification.cluttered_mnist import (
    ClutteredDigits as ClutteredDigits,
    ClutterSpec as ClutterSpec,
)
from .classification.datasets import (
    ClassFolders as ClassFolders,
    TorchvisionImages as TorchvisionImages,
)
from .classification.digit_sequences import (
    DigitCanvases as DigitCanvases,
    DigitSequences as DigitSequences,
    DigitSequenceSpec as DigitSequenceSpec,
)
from .questions.sort_of_clevr import (
    SortOfClevrImages as SortOfClevrImages,
)
from .questions.vqa_files import (
    VQAFiles as VQAFiles,
)
from .regions.sources import (
    CocoInstances as CocoInstances,
    MaskFolders as MaskFolders,
    VOCBoxes as VOCBoxes,
    YOLOBoxes as YOLOBoxes,
)
from .scenes.dataset import (
    SceneCaptions as SceneCaptions,
    SceneObjects as SceneObjects,
    SingleObjects as SingleObjects,
)
from .source import (
    Source as Source,
)
from .tables import (
    HubBoxes as HubBoxes,
    HubCaptions as HubCaptions,
    HubClasses as HubClasses,
    HubQuestions as HubQuestions,
)

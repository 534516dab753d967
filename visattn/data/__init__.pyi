from .augment.images import (
    Augmentation as Augmentation,
    RandAugment as RandAugment,
    RandomErasing as RandomErasing,
    RandomResizedCrop as RandomResizedCrop,
)
from .captions.batch import (
    CaptionBatch as CaptionBatch,
    CaptionSample as CaptionSample,
    Vocabulary as Vocabulary,
    collate_captions as collate_captions,
)
from .captions.dataset import (
    CaptionDataset as CaptionDataset,
)
from .captions.files import (
    read_captions as read_captions,
)
from .classification.cluttered_mnist import (
    ClutterSpec as ClutterSpec,
)
from .classification.digit_sequences import (
    DigitSequences as DigitSequences,
    DigitSequenceSpec as DigitSequenceSpec,
)
from .feature_cache import (
    FeatureCache as FeatureCache,
)
from .loading.samplers import (
    LengthBucketBatchSampler as LengthBucketBatchSampler,
)
from .photo_tables import (
    TableSource as TableSource,
)
from .regions.annotations import (
    AnnotatedImage as AnnotatedImage,
)
from .regions.coco_instances import (
    coco_boxes as coco_boxes,
)
from .regions.masks import (
    map_rle as map_rle,
)
from .regions.readers import (
    read_annotated_images as read_annotated_images,
)
from .scenes.dataset import (
    SINGLE_OBJECT as SINGLE_OBJECT,
    Scenes as Scenes,
    SingleCaptionScenes as SingleCaptionScenes,
    single_object_scenes as single_object_scenes,
    single_object_world as single_object_world,
)
from .scenes.language import (
    grammar_words as grammar_words,
    verify_caption as verify_caption,
)
from .scenes.world import (
    WorldConfig as WorldConfig,
    draw_world as draw_world,
)

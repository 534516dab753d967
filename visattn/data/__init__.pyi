from .captions.batch import (
    CaptionBatch as CaptionBatch,
    CaptionSample as CaptionSample,
    collate_captions as collate_captions,
)
from .captions.dataset import (
    CaptionDataset as CaptionDataset,
)
from .captions.files import (
    read_captions as read_captions,
)
from .captions.vocabulary import (
    Vocabulary as Vocabulary,
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
from .images.augment import (
    Augmentation as Augmentation,
    RandomResizedCrop as RandomResizedCrop,
)
from .images.batch_augment import (
    RandAugment as RandAugment,
    RandomErasing as RandomErasing,
)
from .loading.samplers import (
    LengthBucketBatchSampler as LengthBucketBatchSampler,
)
from .questions.scene_grammar import (
    parse_scene_question as parse_scene_question,
    solve_scene_question as solve_scene_question,
)
from .questions.scene_questions import (
    SceneQuestions as SceneQuestions,
)
from .regions.annotations import (
    AnnotatedImage as AnnotatedImage,
)
from .regions.box_files import (
    coco_boxes as coco_boxes,
)
from .regions.masks import (
    map_rle as map_rle,
)
from .regions.readers import (
    read_annotated_images as read_annotated_images,
)
from .scenes.dataset import (
    Scenes as Scenes,
    SingleCaptionScenes as SingleCaptionScenes,
)
from .scenes.grammar import (
    grammar_words as grammar_words,
)
from .scenes.render import (
    draw_world as draw_world,
)
from .scenes.single_object import (
    SINGLE_OBJECT as SINGLE_OBJECT,
    single_object_scenes as single_object_scenes,
    single_object_world as single_object_world,
)
from .scenes.verify import (
    verify_caption as verify_caption,
)
from .scenes.world import (
    WorldConfig as WorldConfig,
)
from .shards.writer import (
    write_shards as write_shards,
)

from .captions.batch import (
    CaptionBatch as CaptionBatch,
)
from .captions.batch import (
    CaptionSample as CaptionSample,
)
from .captions.batch import (
    caption_batch as caption_batch,
)
from .captions.dataset import (
    CaptionDataset as CaptionDataset,
)
from .captions.dataset import (
    mirrored_words as mirrored_words,
)
from .captions.files import (
    CaptionEntry as CaptionEntry,
)
from .captions.files import (
    CaptionSplit as CaptionSplit,
)
from .captions.files import (
    check_disjoint as check_disjoint,
)
from .captions.files import (
    check_ids as check_ids,
)
from .captions.files import (
    in_split as in_split,
)
from .captions.files import (
    of_split as of_split,
)
from .captions.files import (
    per_split as per_split,
)
from .captions.files import (
    read_captions as read_captions,
)
from .captions.files import (
    read_split as read_split,
)
from .captions.files import (
    split_entries as split_entries,
)
from .captions.formats import (
    Remark as Remark,
)
from .captions.formats import (
    recognized as recognized,
)
from .captions.formats import (
    remarks as remarks,
)
from .captions.images import (
    CaptionedImages as CaptionedImages,
)
from .captions.images import (
    CaptionedPhotos as CaptionedPhotos,
)
from .captions.images import (
    missing_photos as missing_photos,
)
from .captions.predictions import (
    Results as Results,
)
from .captions.predictions import (
    read_results as read_results,
)
from .captions.vocabulary import (
    Vocabulary as Vocabulary,
)
from .captions.vocabulary import (
    split_words as split_words,
)
from .classification.cluttered_mnist import (
    ClutteredMNIST as ClutteredMNIST,
)
from .classification.cluttered_mnist import (
    ClutterSpec as ClutterSpec,
)
from .classification.cluttered_mnist import (
    Placements as Placements,
)
from .classification.cluttered_mnist import (
    lay as lay,
)
from .classification.datasets import (
    FramedPhotos as FramedPhotos,
)
from .classification.datasets import (
    HeldImages as HeldImages,
)
from .classification.datasets import (
    LabeledBatch as LabeledBatch,
)
from .classification.datasets import (
    LabeledImages as LabeledImages,
)
from .classification.datasets import (
    class_folders as class_folders,
)
from .classification.datasets import (
    labeled_files as labeled_files,
)
from .classification.torchvision_sets import (
    check_digits as check_digits,
)
from .classification.torchvision_sets import (
    idx_shape as idx_shape,
)
from .classification.torchvision_sets import (
    read_torchvision as read_torchvision,
)
from .feature_cache.cache import (
    CachePlan as CachePlan,
)
from .feature_cache.cache import (
    FeatureCache as FeatureCache,
)
from .feature_cache.cache import (
    cache_plan as cache_plan,
)
from .feature_cache.format import (
    FeatureHeader as FeatureHeader,
)
from .feature_cache.format import (
    alone as alone,
)
from .feature_cache.format import (
    differences as differences,
)
from .feature_cache.format import (
    packed as packed,
)
from .feature_cache.format import (
    read_record as read_record,
)
from .feature_cache.format import (
    some as some,
)
from .feature_cache.format import (
    unpacked as unpacked,
)
from .feature_cache.request import (
    Images as Images,
)
from .feature_cache.request import (
    check_given as check_given,
)
from .feature_cache.request import (
    check_size as check_size,
)
from .feature_cache.request import (
    check_there as check_there,
)
from .feature_cache.request import (
    found as found,
)
from .feature_cache.request import (
    requested as requested,
)
from .feature_cache.writer import (
    check_alike as check_alike,
)
from .feature_cache.writer import (
    features_of as features_of,
)
from .feature_cache.writer import (
    placed as placed,
)
from .feature_cache.writer import (
    write_features as write_features,
)
from .images.augment import (
    Affine as Affine,
)
from .images.augment import (
    Augmentation as Augmentation,
)
from .images.augment import (
    EachAlone as EachAlone,
)
from .images.augment import (
    RandomHorizontalFlip as RandomHorizontalFlip,
)
from .images.augment import (
    RandomTranslate as RandomTranslate,
)
from .images.augment import (
    augmentation as augmentation,
)
from .images.integrity import (
    rows_missing as rows_missing,
)
from .images.integrity import (
    scan_count as scan_count,
)
from .images.reader import (
    ImageError as ImageError,
)
from .images.reader import (
    LoadedImage as LoadedImage,
)
from .images.reader import (
    find_images as find_images,
)
from .images.reader import (
    read_image as read_image,
)
from .images.reader import (
    read_size as read_size,
)
from .images.resize import (
    ResizeSpec as ResizeSpec,
)
from .images.resize import (
    frame as frame,
)
from .images.resize import (
    framed_geometry as framed_geometry,
)
from .images.rgb import (
    from_array as from_array,
)
from .images.rgb import (
    to_rgb as to_rgb,
)
from .loading.fallback import (
    ReadFallback as ReadFallback,
)
from .loading.sample_seed import (
    mixed as mixed,
)
from .loading.sample_seed import (
    numbered_uniforms as numbered_uniforms,
)
from .loading.samplers import (
    DistributedEvalSampler as DistributedEvalSampler,
)
from .loading.samplers import (
    EpochIndexSampler as EpochIndexSampler,
)
from .loading.samplers import (
    LengthBucketBatchSampler as LengthBucketBatchSampler,
)
from .loading.samplers import (
    PairsOnce as PairsOnce,
)
from .loading.stateful_loader import (
    StatefulDataLoader as StatefulDataLoader,
)
from .phrases.grounding import (
    GroundingResult as GroundingResult,
)
from .phrases.grounding import (
    SupervisedWords as SupervisedWords,
)
from .phrases.grounding import (
    judge_phrases as judge_phrases,
)
from .phrases.grounding import (
    supervised_words as supervised_words,
)
from .phrases.phrases import (
    Phrase as Phrase,
)
from .phrases.phrases import (
    phrases_on_input as phrases_on_input,
)
from .phrases.phrases import (
    read_phrases as read_phrases,
)
from .phrases.phrases import (
    spoken_phrases as spoken_phrases,
)
from .regions.coco_instances import (
    CocoImage as CocoImage,
)
from .regions.coco_instances import (
    CocoObject as CocoObject,
)
from .regions.coco_instances import (
    read_instance_file as read_instance_file,
)
from .regions.dataset import (
    LocatedImage as LocatedImage,
)
from .regions.dataset import (
    LocatedObject as LocatedObject,
)
from .regions.dataset import (
    read_instances as read_instances,
)
from .regions.dataset import (
    read_located as read_located,
)
from .regions.dataset import (
    read_masked as read_masked,
)
from .regions.imagenet_to_coco import (
    classes_of as classes_of,
)
from .regions.masks import (
    boxes_mask as boxes_mask,
)
from .regions.masks import (
    polygon_mask as polygon_mask,
)
from .regions.masks import (
    run_length_mask as run_length_mask,
)
from .regions.masks import (
    segmentation_mask as segmentation_mask,
)
from .regions.saved_maps import (
    MapFile as MapFile,
)
from .regions.saved_maps import (
    read_maps as read_maps,
)
from .regions.saved_maps import (
    shaped_maps as shaped_maps,
)
from .scenes.dataset import (
    EachCaptionOnce as EachCaptionOnce,
)
from .scenes.dataset import (
    Scenes as Scenes,
)
from .scenes.grammar import (
    SceneCaption as SceneCaption,
)
from .scenes.grammar import (
    grammar_words as grammar_words,
)
from .scenes.grammar import (
    holds as holds,
)
from .scenes.grammar import (
    tell as tell,
)
from .scenes.render import (
    draw as draw,
)
from .scenes.render import (
    masks as masks,
)
from .scenes.single_object import (
    SingleObjectScenes as SingleObjectScenes,
)
from .scenes.single_object import (
    lone_things as lone_things,
)
from .scenes.single_object import (
    lone_world as lone_world,
)
from .scenes.verify import (
    Claim as Claim,
)
from .scenes.verify import (
    Judgment as Judgment,
)
from .scenes.verify import (
    Mention as Mention,
)
from .scenes.verify import (
    Verdict as Verdict,
)
from .scenes.verify import (
    check as check,
)
from .scenes.verify import (
    judge as judge,
)
from .scenes.verify import (
    parse as parse,
)
from .scenes.world import (
    Kinds as Kinds,
)
from .scenes.world import (
    SceneObject as SceneObject,
)
from .scenes.world import (
    World as World,
)
from .scenes.world import (
    sample_world as sample_world,
)
from .shards.datasets import (
    ShardedPhotos as ShardedPhotos,
)
from .shards.datasets import (
    ShardedRasters as ShardedRasters,
)
from .shards.datasets import (
    ShardEntries as ShardEntries,
)
from .shards.datasets import (
    ShardImages as ShardImages,
)
from .shards.datasets import (
    caption_entry as caption_entry,
)
from .shards.format import (
    ShardFacts as ShardFacts,
)
from .shards.format import (
    ShardInfo as ShardInfo,
)
from .shards.format import (
    SplitFacts as SplitFacts,
)
from .shards.format import (
    hash_of as hash_of,
)
from .shards.format import (
    index_name as index_name,
)
from .shards.format import (
    key_of as key_of,
)
from .shards.format import (
    open_index as open_index,
)
from .shards.format import (
    padded as padded,
)
from .shards.format import (
    plan_of as plan_of,
)
from .shards.format import (
    read_json as read_json,
)
from .shards.format import (
    shard_name as shard_name,
)
from .shards.format import (
    write_json as write_json,
)
from .shards.reader import (
    ShardSamples as ShardSamples,
)
from .shards.reader import (
    decoded as decoded,
)
from .shards.sources import (
    HeldSource as HeldSource,
)
from .shards.sources import (
    ShardPlan as ShardPlan,
)
from .shards.sources import (
    ShardSample as ShardSample,
)
from .shards.sources import (
    ShardSource as ShardSource,
)
from .shards.sources import (
    caption_plan as caption_plan,
)
from .shards.sources import (
    ending as ending,
)
from .shards.sources import (
    folder_plan as folder_plan,
)
from .shards.sources import (
    held_plan as held_plan,
)
from .shards.verify import (
    ShardFault as ShardFault,
)
from .shards.verify import (
    check_shards as check_shards,
)
from .shards.verify import (
    shard_faults as shard_faults,
)
from .shards.webdataset import (
    SampleStream as SampleStream,
)
from .shards.webdataset import (
    StreamedSample as StreamedSample,
)
from .shards.webdataset import (
    StreamLoader as StreamLoader,
)
from .shards.webdataset import (
    check_address as check_address,
)
from .shards.webdataset import (
    secure_webdataset as secure_webdataset,
)
from .shards.webdataset import (
    streamed_sample as streamed_sample,
)
from .shards.writer import (
    mixed_order as mixed_order,
)
from .shards.writer import (
    shard_files as shard_files,
)
from .shards.writer import (
    write_shards as write_shards,
)

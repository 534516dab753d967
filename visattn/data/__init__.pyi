from .captions.batch import (
    CaptionBatch as CaptionBatch,
    CaptionSample as CaptionSample,
    collate_captions as collate_captions,
)
from .captions.dataset import (
    CaptionDataset as CaptionDataset,
    hflip_sample as hflip_sample,
)
from .captions.files import (
    CaptionEntry as CaptionEntry,
    CaptionSplit as CaptionSplit,
    check_disjoint_splits as check_disjoint_splits,
    check_unique_ids as check_unique_ids,
    entries_of_split as entries_of_split,
    read_caption_splits as read_caption_splits,
    read_captions as read_captions,
    read_split_file as read_split_file,
    select_listed as select_listed,
    select_split as select_split,
)
from .captions.formats import (
    CaptionRecord as CaptionRecord,
    detect_format as detect_format,
    parse_captions as parse_captions,
)
from .captions.images import (
    CaptionedImages as CaptionedImages,
    CaptionedPhotos as CaptionedPhotos,
    missing_photos as missing_photos,
)
from .captions.predictions import (
    CaptionResults as CaptionResults,
    read_caption_results as read_caption_results,
)
from .captions.sides import (
    swap_sides as swap_sides,
)
from .captions.vocabulary import (
    Vocabulary as Vocabulary,
    WordCounts as WordCounts,
    count_words as count_words,
    split_words as split_words,
)
from .classification.cluttered_mnist import (
    ClutteredMNIST as ClutteredMNIST,
    ClutterSpec as ClutterSpec,
    Placements as Placements,
    crop_patches as crop_patches,
    paste as paste,
)
from .classification.datasets import (
    ImageFiles as ImageFiles,
    InMemoryImages as InMemoryImages,
    LabeledBatch as LabeledBatch,
    LabeledImages as LabeledImages,
    UntransformedBatch as UntransformedBatch,
    WithUniforms as WithUniforms,
    augment_images as augment_images,
    augmentation_uniforms as augmentation_uniforms,
    find_classes as find_classes,
    list_labeled_files as list_labeled_files,
)
from .classification.digit_sequences import (
    DigitPlacements as DigitPlacements,
    DigitSequenceBatch as DigitSequenceBatch,
    DigitSequences as DigitSequences,
    DigitSequenceSpec as DigitSequenceSpec,
)
from .classification.ink import (
    ink_boxes as ink_boxes,
    resize_weights as resize_weights,
)
from .classification.torchvision_sets import (
    check_mnist_files as check_mnist_files,
    load_torchvision as load_torchvision,
    read_idx_shape as read_idx_shape,
)
from .feature_cache.cache import (
    FeatureCache as FeatureCache,
    request_header as request_header,
)
from .feature_cache.compute import (
    check_features as check_features,
    compute_features as compute_features,
    write_features as write_features,
)
from .feature_cache.format import (
    FeatureHeader as FeatureHeader,
    lock_folder as lock_folder,
    map_records as map_records,
    pack_records as pack_records,
    read_record as read_record,
    unpack_record as unpack_record,
)
from .images.augment import (
    Affine as Affine,
    Augmentation as Augmentation,
    PerImageTransform as PerImageTransform,
    RandomHorizontalFlip as RandomHorizontalFlip,
    RandomResizedCrop as RandomResizedCrop,
    RandomTranslate as RandomTranslate,
    augmentation_from as augmentation_from,
    build_augmentation as build_augmentation,
)
from .images.batch_augment import (
    RandAugment as RandAugment,
    RandomErasing as RandomErasing,
    build_batch_transform as build_batch_transform,
)
from .images.integrity import (
    count_jpeg_scans as count_jpeg_scans,
    png_rows_missing as png_rows_missing,
)
from .images.joint_transforms import (
    IGNORE_CLASS as IGNORE_CLASS,
    JointTransforms as JointTransforms,
    RegionSample as RegionSample,
    sample_nearest as sample_nearest,
)
from .images.reader import (
    ImageError as ImageError,
    ImageHeader as ImageHeader,
    ImageLike as ImageLike,
    LoadedImage as LoadedImage,
    find_images as find_images,
    list_images as list_images,
    read_header as read_header,
    read_image as read_image,
    read_label_image as read_label_image,
    read_rgb as read_rgb,
    read_size as read_size,
)
from .images.resize import (
    ResizeSpec as ResizeSpec,
    resize_geometry as resize_geometry,
    resize_rgb as resize_rgb,
    resize_to_input as resize_to_input,
)
from .images.rgb import (
    from_array as from_array,
    to_rgb as to_rgb,
)
from .images.video import (
    VIDEO_SUFFIXES as VIDEO_SUFFIXES,
    Mp4Writer as Mp4Writer,
    VideoError as VideoError,
    VideoFrame as VideoFrame,
    VideoReader as VideoReader,
    is_video as is_video,
)
from .loading.cores import (
    available_cores as available_cores,
)
from .loading.fallback import (
    ReadFallback as ReadFallback,
)
from .loading.path_list import (
    PathList as PathList,
)
from .loading.sample_seed import (
    mix_seed as mix_seed,
    per_sample_uniforms as per_sample_uniforms,
)
from .loading.samplers import (
    DistributedEvalSampler as DistributedEvalSampler,
    EpochIndexSampler as EpochIndexSampler,
    LengthBucketBatchSampler as LengthBucketBatchSampler,
)
from .loading.stateful_loader import (
    StatefulDataLoader as StatefulDataLoader,
    default_num_workers as default_num_workers,
    worker_options as worker_options,
)
from .phrases.flickr30k_entities import (
    parse_entity_sentence as parse_entity_sentence,
    read_flickr30k_entities as read_flickr30k_entities,
)
from .phrases.grounding import (
    GroundingResult as GroundingResult,
    SupervisedWords as SupervisedWords,
    score_phrases as score_phrases,
    supervised_words as supervised_words,
)
from .phrases.phrases import (
    Phrase as Phrase,
    match_phrases as match_phrases,
    phrases_to_input as phrases_to_input,
    read_phrases as read_phrases,
)
from .phrases.samples import (
    PhrasedPhoto as PhrasedPhoto,
    annotated_photos as annotated_photos,
    coco_photos as coco_photos,
    scene_photos as scene_photos,
)
from .questions.batch import (
    Question as Question,
    QuestionBatch as QuestionBatch,
    QuestionSample as QuestionSample,
    collate_questions as collate_questions,
    encode_questions as encode_questions,
    vqa_accuracy as vqa_accuracy,
)
from .questions.erasure import (
    Erasure as Erasure,
    erase_objects as erase_objects,
)
from .questions.scene_grammar import (
    Description as Description,
    SceneQuery as SceneQuery,
    parse_scene_question as parse_scene_question,
    scene_answers as scene_answers,
    scene_question_words as scene_question_words,
    scene_referents as scene_referents,
    solve_scene_question as solve_scene_question,
)
from .questions.scene_questions import (
    SceneQuestions as SceneQuestions,
    planted_world as planted_world,
    scene_question as scene_question,
    scene_sample as scene_sample,
)
from .questions.sort_of_clevr import (
    PairFacts as PairFacts,
    SortOfClevrFacts as SortOfClevrFacts,
    SortOfClevrLayout as SortOfClevrLayout,
    draw_layouts as draw_layouts,
    layout_boxes as layout_boxes,
    layout_facts as layout_facts,
    left_margin as left_margin,
    pair_facts as pair_facts,
    sample_layouts as sample_layouts,
)
from .questions.sort_of_clevr_questions import (
    SortOfClevr as SortOfClevr,
    sort_of_clevr_texts as sort_of_clevr_texts,
)
from .questions.vqa_files import (
    QuestionPhoto as QuestionPhoto,
    QuestionPhotos as QuestionPhotos,
    frequent_answers as frequent_answers,
    normalize_answer as normalize_answer,
    read_gqa as read_gqa,
    read_vqa as read_vqa,
)
from .regions.coco_instances import (
    CocoImage as CocoImage,
    CocoObject as CocoObject,
    read_category_names as read_category_names,
    read_instance_file as read_instance_file,
)
from .regions.dataset import (
    AnnotatedImage as AnnotatedImage,
    AnnotatedObject as AnnotatedObject,
    check_photo_sizes as check_photo_sizes,
    read_annotated_images as read_annotated_images,
    read_coco_images as read_coco_images,
    read_images_with_masks as read_images_with_masks,
)
from .regions.detection import (
    AnnotatedObjects as AnnotatedObjects,
    BoxCounts as BoxCounts,
    DetectionBatch as DetectionBatch,
    DetectionDataset as DetectionDataset,
    DetectionSample as DetectionSample,
    SceneObjects as SceneObjects,
    collate_detections as collate_detections,
    count_boxes as count_boxes,
)
from .regions.imagenet_boxes import (
    read_imagenet_boxes as read_imagenet_boxes,
)
from .regions.imagenet_to_coco import (
    matching_classes as matching_classes,
)
from .regions.masks import (
    CocoRLE as CocoRLE,
    boxes_mask as boxes_mask,
    check_polygons as check_polygons,
    check_rle as check_rle,
    map_rle as map_rle,
    mask_boxes as mask_boxes,
    mask_rle as mask_rle,
    polygon_mask as polygon_mask,
    rle_mask as rle_mask,
    segmentation_mask as segmentation_mask,
)
from .regions.saved_maps import (
    SavedMaps as SavedMaps,
    read_saved_maps as read_saved_maps,
    reshape_maps as reshape_maps,
)
from .regions.segmentation import (
    CocoSegmentation as CocoSegmentation,
    MaskFolder as MaskFolder,
    PixelCounts as PixelCounts,
    SceneSegmentation as SceneSegmentation,
    SegmentationBatch as SegmentationBatch,
    SegmentationImages as SegmentationImages,
    SegmentationSample as SegmentationSample,
    label_map as label_map,
    pair_masks as pair_masks,
    resize_sample as resize_sample,
)
from .scenes.dataset import (
    Scenes as Scenes,
    SingleCaptionScenes as SingleCaptionScenes,
)
from .scenes.grammar import (
    SceneCaption as SceneCaption,
    describe_world as describe_world,
    grammar_words as grammar_words,
    is_visual_word as is_visual_word,
    relation_holds as relation_holds,
)
from .scenes.render import (
    draw_world as draw_world,
    object_boxes as object_boxes,
    object_masks as object_masks,
)
from .scenes.single_object import (
    SingleObjectScenes as SingleObjectScenes,
    single_object_scenes as single_object_scenes,
    single_object_world as single_object_world,
)
from .scenes.verify import (
    CaptionScore as CaptionScore,
    Claim as Claim,
    Mention as Mention,
    Verdict as Verdict,
    parse_claim as parse_claim,
    score_caption as score_caption,
    verify_caption as verify_caption,
)
from .scenes.world import (
    COLORS as COLORS,
    SHAPES as SHAPES,
    TEXTURES as TEXTURES,
    SceneObject as SceneObject,
    World as World,
    WorldConfig as WorldConfig,
    sample_world as sample_world,
)
from .shards.datasets import (
    ShardedPhotos as ShardedPhotos,
    ShardedTensors as ShardedTensors,
    ShardEntries as ShardEntries,
    ShardImages as ShardImages,
    caption_entry as caption_entry,
)
from .shards.format import (
    ShardInfo as ShardInfo,
    ShardMetadata as ShardMetadata,
    SplitMetadata as SplitMetadata,
    file_sha256 as file_sha256,
    index_name as index_name,
    open_index as open_index,
    padded_size as padded_size,
    read_json as read_json,
    read_plan_hash as read_plan_hash,
    sample_key as sample_key,
    shard_name as shard_name,
    write_json as write_json,
)
from .shards.reader import (
    ShardSamples as ShardSamples,
    decode_image as decode_image,
)
from .shards.sources import (
    InMemorySource as InMemorySource,
    ShardPlan as ShardPlan,
    ShardSample as ShardSample,
    ShardSource as ShardSource,
    caption_plan as caption_plan,
    folder_plan as folder_plan,
    image_extension as image_extension,
    in_memory_plan as in_memory_plan,
)
from .shards.verify import (
    ShardFault as ShardFault,
    check_shards as check_shards,
    find_shard_faults as find_shard_faults,
)
from .shards.webdataset import (
    SampleStream as SampleStream,
    StreamedSample as StreamedSample,
    StreamLoader as StreamLoader,
    check_url as check_url,
    import_webdataset as import_webdataset,
    parse_streamed_sample as parse_streamed_sample,
)
from .shards.writer import (
    shard_files as shard_files,
    shuffled_order as shuffled_order,
    write_shards as write_shards,
)

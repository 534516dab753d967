from .backbones.huggingface import (
    huggingface_preprocessing as huggingface_preprocessing,
    huggingface_transform as huggingface_transform,
    is_image_processor as is_image_processor,
    load_huggingface_model as load_huggingface_model,
    processor_transform as processor_transform,
    read_huggingface_model as read_huggingface_model,
)
from .backbones.loaded_model import (
    LoadedModel as LoadedModel,
)
from .backbones.pretrained import (
    load_timm_model as load_timm_model,
    load_torchvision_model as load_torchvision_model,
    names_video_model as names_video_model,
    unique_names as unique_names,
)
from .backbones.text_models import (
    load_text_model as load_text_model,
    text_classifier as text_classifier,
)
from .backbones.timm_classifier import (
    TimmClassifier as TimmClassifier,
)
from .backbones.timm_encoder import (
    TimmEncoder as TimmEncoder,
    intermediate_output as intermediate_output,
    network_after as network_after,
)
from .backbones.timm_weights import (
    create_timm_backbone as create_timm_backbone,
    load_timm_weights as load_timm_weights,
    load_weights as load_weights,
)
from .backbones.user_code import (
    is_user_code as is_user_code,
    load_user_model as load_user_model,
    user_code_file as user_code_file,
)
from .captioner import (
    SPECIAL_TOKENS as SPECIAL_TOKENS,
    AttentionStep as AttentionStep,
    Captioner as Captioner,
    DecoderCaptioner as DecoderCaptioner,
    TeacherForcedOutput as TeacherForcedOutput,
)
from .captioning.adaptive_attention import (
    AdaptiveAttention as AdaptiveAttention,
    AdaptiveDecoder as AdaptiveDecoder,
    AdaptiveDecoderState as AdaptiveDecoderState,
    KnowingWhenToLook as KnowingWhenToLook,
)
from .captioning.attending_decoder import (
    AttendingDecoder as AttendingDecoder,
    AttendingDecoderState as AttendingDecoderState,
    CaptionAttention as CaptionAttention,
    SoftAttention as SoftAttention,
    feature_projection as feature_projection,
    init_mlp as init_mlp,
    lstm_step as lstm_step,
)
from .captioning.column_attention import (
    ColumnAttention as ColumnAttention,
)
from .captioning.decoder_layer import (
    CaptionDecoderLayer as CaptionDecoderLayer,
    CausalSelfAttention as CausalSelfAttention,
    GridAttention as GridAttention,
    GridAttentionOutput as GridAttentionOutput,
    KeyValues as KeyValues,
    PackedWords as PackedWords,
)
from .captioning.ensemble import (
    CaptionerEnsemble as CaptionerEnsemble,
    EnsembleEncoder as EnsembleEncoder,
    EnsembleState as EnsembleState,
)
from .captioning.grid_encoder import (
    GridEncoder as GridEncoder,
    MemoryAttention as MemoryAttention,
)
from .captioning.hard_attention import (
    HardAttention as HardAttention,
    PlaceRollouts as PlaceRollouts,
    PlaceSampler as PlaceSampler,
    one_place as one_place,
    select_places as select_places,
)
from .captioning.sequence_recognizer import (
    SequenceRecognizer as SequenceRecognizer,
)
from .captioning.show_attend_tell import (
    ShowAttendTell as ShowAttendTell,
    has_hard_attention as has_hard_attention,
)
from .captioning.transformer_captioner import (
    TransformerCaptioner as TransformerCaptioner,
)
from .captioning.transformer_decoder import (
    TransformerDecoder as TransformerDecoder,
    TransformerDecoderState as TransformerDecoderState,
)
from .classifier import (
    ImageClassifier as ImageClassifier,
    parse_block_name as parse_block_name,
    unregularized_parameters as unregularized_parameters,
)
from .dense import (
    BACKGROUND as BACKGROUND,
    DenseModel as DenseModel,
    encoder_decoder_parameters as encoder_decoder_parameters,
)
from .detection.decoder import (
    CrossAttention as CrossAttention,
    DetrDecoderLayer as DetrDecoderLayer,
    Memory as Memory,
    cell_centers as cell_centers,
    sine_embed as sine_embed,
)
from .detection.detr import (
    DETR as DETR,
    BoxPrediction as BoxPrediction,
    ClassProbability as ClassProbability,
    Detections as Detections,
    DetrOutput as DetrOutput,
    PredictionHeads as PredictionHeads,
    QueryType as QueryType,
)
from .detection.queries import (
    NO_OBJECT as NO_OBJECT,
    DenoisingQueries as DenoisingQueries,
    ObjectQueries as ObjectQueries,
    cell_anchors as cell_anchors,
    spread_anchors as spread_anchors,
)
from .encoder import (
    ImageEncoder as ImageEncoder,
    SmallEncoder as SmallEncoder,
    cell_coordinates as cell_coordinates,
)
from .normalization import (
    check_normalization as check_normalization,
    normalize_images as normalize_images,
)
from .ram.dram import (
    DRAM as DRAM,
)
from .ram.glimpse_model import (
    GlimpseModel as GlimpseModel,
    GlimpseState as GlimpseState,
)
from .ram.location_policy import (
    LocationPolicy as LocationPolicy,
)
from .ram.networks import (
    GlimpseNet as GlimpseNet,
    GlimpseRNN as GlimpseRNN,
    Retina as Retina,
    conv_encoder as conv_encoder,
)
from .ram.ram import (
    RecurrentAttentionModel as RecurrentAttentionModel,
)
from .ram.rollout import (
    Glimpse as Glimpse,
    GlimpseRollout as GlimpseRollout,
    stack_glimpses as stack_glimpses,
)
from .resnet.attention_resnet import (
    AttentionResNet as AttentionResNet,
    ResNetLayout as ResNetLayout,
    resnet_layout as resnet_layout,
)
from .resnet.units import (
    BasicUnit as BasicUnit,
    BottleneckUnit as BottleneckUnit,
    ZeroPadShortcut as ZeroPadShortcut,
    create_conv as create_conv,
)
from .segmentation.unet import (
    UNet as UNet,
    UNetLevel as UNetLevel,
    UNetOutput as UNetOutput,
)
from .serialization.checkpoint import (
    Progress as Progress,
    read_checkpoint as read_checkpoint,
    read_model as read_model,
    read_progress as read_progress,
    read_recorded_score as read_recorded_score,
)
from .serialization.config import (
    build_model as build_model,
    build_with_weights as build_with_weights,
    check_config_fits as check_config_fits,
    model_config as model_config,
    restore_model as restore_model,
)
from .serialization.finite_weights import (
    all_finite as all_finite,
    check_weight_types as check_weight_types,
    check_weights_before_saving as check_weights_before_saving,
    nonfinite_weights as nonfinite_weights,
)
from .serialization.meta_shapes import (
    check_forward_memory as check_forward_memory,
    weight_shapes as weight_shapes,
)
from .serialization.safetensors_file import (
    read_safetensors as read_safetensors,
    write_safetensors as write_safetensors,
)
from .serialization.state_dict_mapping import (
    build_converted as build_converted,
    check_supported_options as check_supported_options,
    copy_state_dict as copy_state_dict,
    match_head as match_head,
    rename_key as rename_key,
    rename_keys as rename_keys,
    resolve_timm_model as resolve_timm_model,
)
from .serialization.state_dicts import (
    StateDict as StateDict,
    read_state_dict as read_state_dict,
    strip_prefix as strip_prefix,
)
from .serialization.torch_archives import (
    check_archive as check_archive,
    check_tensors as check_tensors,
    read_archive as read_archive,
)
from .serialization.weight_files import (
    check_loaded_weights as check_loaded_weights,
    check_memory as check_memory,
    open_safetensors as open_safetensors,
    require_local_file as require_local_file,
    tensor_shapes as tensor_shapes,
)
from .swin.conversion import (
    swin_from_timm as swin_from_timm,
    swin_from_torchvision as swin_from_torchvision,
    swin_to_timm as swin_to_timm,
)
from .swin.swin_transformer import (
    SwinTransformer as SwinTransformer,
    create_swin as create_swin,
)
from .text_classifier import (
    TextPromptClassifier as TextPromptClassifier,
    check_texts as check_texts,
)
from .vit.from_dinov2 import (
    vit_from_dinov2 as vit_from_dinov2,
)
from .vit.from_timm import (
    vit_from_timm as vit_from_timm,
    vit_to_timm as vit_to_timm,
)
from .vit.from_torchvision import (
    vit_from_torchvision as vit_from_torchvision,
    vit_to_torchvision as vit_to_torchvision,
)
from .vit.parts import (
    check_pos_embed_type as check_pos_embed_type,
    create_layers as create_layers,
    create_pool as create_pool,
    create_stem as create_stem,
    interpolate_pos_embed as interpolate_pos_embed,
    layer_attn_types as layer_attn_types,
    padded_size as padded_size,
    prefix_token_roles as prefix_token_roles,
    rotary_embeddings as rotary_embeddings,
    to_2tuple as to_2tuple,
)
from .vit.presets import (
    create_vit as create_vit,
)
from .vit.vision_transformer import (
    VisionTransformer as VisionTransformer,
)
from .vqa.cnn_mlp import (
    CNNMLP as CNNMLP,
)
from .vqa.cross_attention import (
    CrossAttentionVQA as CrossAttentionVQA,
    ReadingLayer as ReadingLayer,
)
from .vqa.grid_tokens import (
    GridTokens as GridTokens,
    answer_head as answer_head,
)
from .vqa.hierarchical_coattention import (
    AlternatingLevel as AlternatingLevel,
    GuidedStep as GuidedStep,
    HierarchicalCoAttention as HierarchicalCoAttention,
    LevelOutput as LevelOutput,
    ParallelLevel as ParallelLevel,
    QuestionHierarchy as QuestionHierarchy,
)
from .vqa.mac import (
    MAC as MAC,
    ControlUnit as ControlUnit,
    MACState as MACState,
    ReadUnit as ReadUnit,
    WriteUnit as WriteUnit,
)
from .vqa.question_encoders import (
    EncodedQuestions as EncodedQuestions,
    QuestionEncoder as QuestionEncoder,
    QuestionEncoderLayer as QuestionEncoderLayer,
    word_positions as word_positions,
)
from .vqa.question_groups import (
    QuestionGroups as QuestionGroups,
)
from .vqa.relation_network import (
    RelationNetwork as RelationNetwork,
)
from .vqa.stacked_attention import (
    AttentionHop as AttentionHop,
    StackedAttentionNetwork as StackedAttentionNetwork,
)
from .vqa_model import (
    AnswerOutput as AnswerOutput,
    VQAModel as VQAModel,
)

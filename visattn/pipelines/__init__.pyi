from .attention_history import (
    AttentionHistory as AttentionHistory,
    MapRecord as MapRecord,
)
from .attribution_maps import (
    check_method_args as check_method_args,
    compute_maps as compute_maps,
    require_values as require_values,
)
from .captioner_words import (
    captioner_run as captioner_run,
    word_log_probs as word_log_probs,
    word_occlusion as word_occlusion,
)
from .captioning import (
    Caption as Caption,
    caption as caption,
    make_thumbnail as make_thumbnail,
    read_images as read_images,
)
from .dense import (
    describe_at_size as describe_at_size,
    unsupported_dense as unsupported_dense,
    whole_image_preprocessing as whole_image_preprocessing,
    with_bottleneck as with_bottleneck,
)
from .detection import (
    DetectedObject as DetectedObject,
    DetectionResult as DetectionResult,
    detect as detect,
)
from .detector_attention import (
    DetectorAttention as DetectorAttention,
    detector_attention as detector_attention,
)
from .draw_answers import (
    answer_html as answer_html,
)
from .draw_captions import (
    alignment_figure as alignment_figure,
    caption_figure as caption_figure,
    overlay as overlay,
)
from .draw_detections import (
    detection_figure as detection_figure,
    detection_overlay as detection_overlay,
)
from .draw_explorer import (
    all_heads_figure as all_heads_figure,
    explorer_html as explorer_html,
)
from .draw_maps import (
    RenderedMap as RenderedMap,
    comparison_figure as comparison_figure,
    draw_target as draw_target,
    method_title as method_title,
    render_map as render_map,
    target_line as target_line,
)
from .draw_pages import (
    caption_gif as caption_gif,
    caption_html as caption_html,
    ground_phrases as ground_phrases,
)
from .draw_queries import (
    query_figure as query_figure,
)
from .draw_questions import (
    question_panels as question_panels,
    rows_of_types as rows_of_types,
)
from .draw_scanpaths import (
    Coverage as Coverage,
    glimpse_animation as glimpse_animation,
    glimpse_overlay as glimpse_overlay,
    glimpse_panel as glimpse_panel,
    glimpse_wall as glimpse_wall,
)
from .evaluate_dense import (
    DenseMapEvaluator as DenseMapEvaluator,
)
from .evaluate_maps import (
    MapEvaluator as MapEvaluator,
    QueryObject as QueryObject,
    build_queries as build_queries,
    count_classes as count_classes,
)
from .evaluate_words import (
    CaptionerExplainer as CaptionerExplainer,
    ReplayExplainer as ReplayExplainer,
    WordExplainer as WordExplainer,
    evaluate_words as evaluate_words,
    mean_word_scores as mean_word_scores,
)
from .explain_queries import (
    DetectorQueries as DetectorQueries,
    explain_queries as explain_queries,
    load_detector as load_detector,
)
from .explain_texts import (
    maps_of_texts as maps_of_texts,
    stack_texts as stack_texts,
)
from .explain_words import (
    caption_maps as caption_maps,
    check_word_method as check_word_method,
    explain_captions as explain_captions,
    explain_words as explain_words,
    word_gradcam as word_gradcam,
    word_gradcam_maps as word_gradcam_maps,
    word_maps as word_maps,
)
from .explainer import (
    Explainer as Explainer,
    explain as explain,
    methods_for as methods_for,
)
from .graph_export import (
    export_graph as export_graph,
    read_graph_metadata as read_graph_metadata,
)
from .inputs import (
    PreparedImages as PreparedImages,
    followed_transform as followed_transform,
    prepare_images as prepare_images,
    transform_colors as transform_colors,
    transform_images as transform_images,
    with_colors as with_colors,
)
from .layer_attention import (
    RecordedLayer as RecordedLayer,
    record_layers as record_layers,
)
from .model_card import (
    ModelCard as ModelCard,
)
from .model_io import (
    load as load,
    load_blocks as load_blocks,
    load_model as load_model,
    save as save,
    save_blocks as save_blocks,
)
from .question_answering import (
    MAX_WORDS as MAX_WORDS,
    Answer as Answer,
    ask as ask,
    check_question as check_question,
)
from .question_answering_transformers import (
    ask_with_transformers as ask_with_transformers,
)
from .scale import (
    MapScale as MapScale,
    ValueRange as ValueRange,
    empty_map_reason as empty_map_reason,
    is_signed as is_signed,
    map_scale as map_scale,
)
from .scanpath import (
    ScanPath as ScanPath,
    glimpses as glimpses,
)
from .segmentation import (
    Segmentation as Segmentation,
    batch_panels as batch_panels,
    photo_labels as photo_labels,
    place_segmentations as place_segmentations,
    segment as segment,
    segmentation_figure as segmentation_figure,
)
from .sequence_maps import (
    sequence_maps as sequence_maps,
    sequence_methods as sequence_methods,
)
from .video import (
    FrameExplainer as FrameExplainer,
    VideoOverlay as VideoOverlay,
    contact_sheet as contact_sheet,
    overlay_video as overlay_video,
)
from .video_frames import (
    FrameCaptions as FrameCaptions,
    FrameGlimpses as FrameGlimpses,
)
from .video_models import (
    VideoExplainer as VideoExplainer,
)
from .video_shots import (
    ExplainedFrame as ExplainedFrame,
    find_shots as find_shots,
    frame_difference as frame_difference,
    gray_thumbnail as gray_thumbnail,
    smooth_maps as smooth_maps,
)
from .words.captions import (
    caption_with_transformers as caption_with_transformers,
)
from .words.checks import (
    check_captioner as check_captioner,
    check_prompt_length as check_prompt_length,
    replay_memory as replay_memory,
    why_no_image_tokens as why_no_image_tokens,
)
from .words.controls import (
    Controls as Controls,
    find_sinks as find_sinks,
    relative_rows as relative_rows,
    select_indices as select_indices,
)
from .words.generation import (
    GeneratedText as GeneratedText,
    generate as generate,
    is_encoder_decoder as is_encoder_decoder,
    replay_inputs as replay_inputs,
    without_padding as without_padding,
)
from .words.image_tokens import (
    ImageTokens as ImageTokens,
    find_image_tokens as find_image_tokens,
)
from .words.lattice import (
    Lattice as Lattice,
    LatticeAxis as LatticeAxis,
    TokenMoments as TokenMoments,
    assemble_grid as assemble_grid,
    find_lattices as find_lattices,
    interval_shares as interval_shares,
    lattice_boxes as lattice_boxes,
    rasterize_tokens as rasterize_tokens,
)
from .words.loading import (
    load_word_model as load_word_model,
)
from .words.methods import (
    explain_replay as explain_replay,
    replay_given as replay_given,
    replay_maps as replay_maps,
    replay_occlusion as replay_occlusion,
    replay_run as replay_run,
)
from .words.pixel_places import (
    PixelPlaces as PixelPlaces,
    check_places as check_places,
    find_pixel_places as find_pixel_places,
)
from .words.placement import (
    Placement as Placement,
    owned_pixel_moments as owned_pixel_moments,
    place_tokens as place_tokens,
    shared_pixel_moments as shared_pixel_moments,
    token_owners as token_owners,
)
from .words.processing import (
    PhotoProcessor as PhotoProcessor,
    is_chat as is_chat,
    list_prompts as list_prompts,
    pixel_name as pixel_name,
)
from .words.replay import (
    ReplayRun as ReplayRun,
    WordReplay as WordReplay,
    check_log_probs as check_log_probs,
    forward_logits as forward_logits,
    generate_and_replay as generate_and_replay,
    replay_text as replay_text,
)
from .words.spans import (
    Words as Words,
    same_length as same_length,
    split_words as split_words,
)

from .attribution_maps import (
    compute_maps as compute_maps,
)
from .attribution_maps import (
    require_values as require_values,
)
from .captioning import (
    Caption as Caption,
)
from .captioning import (
    caption as caption,
)
from .captioning import (
    read_images as read_images,
)
from .draw_captions import (
    caption_figure as caption_figure,
)
from .draw_captions import (
    overlay as overlay,
)
from .draw_explorer import (
    all_heads_figure as all_heads_figure,
)
from .draw_explorer import (
    explorer_html as explorer_html,
)
from .draw_maps import (
    RenderedMap as RenderedMap,
)
from .draw_maps import (
    comparison_figure as comparison_figure,
)
from .draw_maps import (
    method_title as method_title,
)
from .draw_maps import (
    render_map as render_map,
)
from .draw_maps import (
    target_line as target_line,
)
from .draw_pages import (
    caption_gif as caption_gif,
)
from .draw_pages import (
    caption_html as caption_html,
)
from .draw_pages import (
    ground_phrases as ground_phrases,
)
from .draw_scanpaths import (
    Coverage as Coverage,
)
from .draw_scanpaths import (
    glimpse_animation as glimpse_animation,
)
from .draw_scanpaths import (
    glimpse_overlay as glimpse_overlay,
)
from .draw_scanpaths import (
    glimpse_panel as glimpse_panel,
)
from .draw_scanpaths import (
    glimpse_wall as glimpse_wall,
)
from .evaluate_maps import (
    MapEvaluator as MapEvaluator,
)
from .evaluate_maps import (
    QueryObject as QueryObject,
)
from .evaluate_maps import (
    build_queries as build_queries,
)
from .evaluate_maps import (
    count_classes as count_classes,
)
from .explain_words import (
    word_gradcam as word_gradcam,
)
from .explain_words import (
    word_gradcam_maps as word_gradcam_maps,
)
from .explain_words import (
    word_maps as word_maps,
)
from .explainer import (
    Explainer as Explainer,
)
from .explainer import (
    explain as explain,
)
from .explainer import (
    methods_for as methods_for,
)
from .inputs import (
    PreparedImages as PreparedImages,
)
from .inputs import (
    list_images as list_images,
)
from .inputs import (
    prepare_images as prepare_images,
)
from .inputs import (
    transform_images as transform_images,
)
from .layer_attention import (
    RecordedLayer as RecordedLayer,
)
from .layer_attention import (
    record_layers as record_layers,
)
from .model_io import (
    load as load,
)
from .model_io import (
    load_model as load_model,
)
from .model_io import (
    save as save,
)
from .scale import (
    MapScale as MapScale,
)
from .scale import (
    empty_map_reason as empty_map_reason,
)
from .scale import (
    is_signed as is_signed,
)
from .scale import (
    map_scale as map_scale,
)
from .scanpath import (
    ScanPath as ScanPath,
)
from .scanpath import (
    glimpses as glimpses,
)

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
    overlay as overlay,
)
from .draw_captions import (
    panel as panel,
)
from .draw_explorer import (
    explorer as explorer,
)
from .draw_explorer import (
    heads_sheet as heads_sheet,
)
from .draw_maps import (
    DrawnMap as DrawnMap,
)
from .draw_maps import (
    comparison as comparison,
)
from .draw_maps import (
    drawn_map as drawn_map,
)
from .draw_maps import (
    method_title as method_title,
)
from .draw_maps import (
    subject_line as subject_line,
)
from .draw_pages import (
    animation as animation,
)
from .draw_pages import (
    judged_phrases as judged_phrases,
)
from .draw_pages import (
    page as page,
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
    class_count as class_count,
)
from .evaluate_maps import (
    sought_things as sought_things,
)
from .explain_words import (
    word_activations as word_activations,
)
from .explain_words import (
    word_gradcam as word_gradcam,
)
from .explain_words import (
    word_maps as word_maps,
)
from .explanation import (
    explain as explain,
)
from .explanation import (
    methods_for as methods_for,
)
from .inputs import (
    Prepared as Prepared,
)
from .inputs import (
    prepared as prepared,
)
from .inputs import (
    transformed as transformed,
)
from .layer_attention import (
    SeenLayer as SeenLayer,
)
from .layer_attention import (
    seen_layers as seen_layers,
)
from .model_spec import (
    named_model as named_model,
)
from .save_load import (
    load as load,
)
from .save_load import (
    save as save,
)
from .scale import (
    MapScale as MapScale,
)
from .scale import (
    blankness as blankness,
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

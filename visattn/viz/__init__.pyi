from .captions.animation import (
    caption_animation as caption_animation,
)
from .captions.animation import (
    frame_size as frame_size,
)
from .captions.panel import (
    caption_panel as caption_panel,
)
from .html.caption_page import (
    ShownCaption as ShownCaption,
)
from .html.caption_page import (
    ShownPhrase as ShownPhrase,
)
from .html.caption_page import (
    caption_page as caption_page,
)
from .html.document import (
    escaped_text as escaped_text,
)
from .html.document import (
    file_address as file_address,
)
from .html.document import (
    image_address as image_address,
)
from .html.document import (
    sealed_document as sealed_document,
)
from .html.explorer_page import (
    ExploredLayer as ExploredLayer,
)
from .html.explorer_page import (
    ExploredMap as ExploredMap,
)
from .html.explorer_page import (
    eight_bits as eight_bits,
)
from .html.explorer_page import (
    explorer_page as explorer_page,
)
from .html.index_page import (
    IndexEntry as IndexEntry,
)
from .html.index_page import (
    index_entries as index_entries,
)
from .html.index_page import (
    index_page as index_page,
)
from .html.index_page import (
    thumbnail as thumbnail,
)
from .html.index_page import (
    tiled as tiled,
)
from .html.photo_page import (
    photo_page as photo_page,
)
from .html.safe_text import (
    runs_leftwards as runs_leftwards,
)
from .html.safe_text import (
    shown_text as shown_text,
)
from .layout.gif import (
    encoded_gif as encoded_gif,
)
from .layout.grid import (
    TileGrid as TileGrid,
)
from .layout.grid import (
    tile_grid as tile_grid,
)
from .layout.grid import (
    tile_size as tile_size,
)
from .layout.grid import (
    title_end as title_end,
)
from .layout.grid import (
    titled_page as titled_page,
)
from .layout.grid import (
    write_title as write_title,
)
from .layout.text import (
    Letters as Letters,
)
from .layout.text import (
    shortened as shortened,
)
from .layout.text import (
    typeface as typeface,
)
from .layout.text import (
    wrapped as wrapped,
)
from .maps.colormap import (
    color_table as color_table,
)
from .maps.comparison import (
    ComparedMap as ComparedMap,
)
from .maps.comparison import (
    comparison_panel as comparison_panel,
)
from .maps.contours import (
    isolined as isolined,
)
from .maps.contours import (
    outlined as outlined,
)
from .maps.crops import (
    crop_panel as crop_panel,
)
from .maps.crops import (
    framed_crop as framed_crop,
)
from .maps.heads import (
    LayerRow as LayerRow,
)
from .maps.heads import (
    head_grid as head_grid,
)
from .maps.heads import (
    head_tile_size as head_tile_size,
)
from .maps.heatmap import (
    cold_colors as cold_colors,
)
from .maps.heatmap import (
    colored_map as colored_map,
)
from .maps.heatmap import (
    glowing_colors as glowing_colors,
)
from .maps.heatmap import (
    level_steps as level_steps,
)
from .maps.heatmap import (
    overlay as overlay,
)
from .maps.legend import (
    draw_legend as draw_legend,
)
from .maps.resize import (
    resized_image as resized_image,
)
from .maps.resize import (
    resized_map as resized_map,
)
from .plots.attention_stats import (
    diagnostic_plot as diagnostic_plot,
)
from .scanpaths.animation import (
    scan_animation as scan_animation,
)
from .scanpaths.coverage import (
    coverage_panel as coverage_panel,
)
from .scanpaths.mosaic import (
    colored as colored,
)
from .scanpaths.mosaic import (
    mosaic as mosaic,
)
from .scanpaths.mosaic import (
    patch_tile as patch_tile,
)
from .scanpaths.panel import (
    glimpse_strip as glimpse_strip,
)
from .scanpaths.panel import (
    scan_panel as scan_panel,
)
from .scanpaths.path import (
    draw_number as draw_number,
)
from .scanpaths.path import (
    scan_path as scan_path,
)
from .scanpaths.path import (
    time_colors as time_colors,
)
from .scanpaths.probabilities import (
    class_colors as class_colors,
)
from .scanpaths.probabilities import (
    probability_plot as probability_plot,
)
from .scanpaths.probabilities import (
    shown_classes as shown_classes,
)
from .scanpaths.record import (
    ShownScan as ShownScan,
)
from .scanpaths.record import (
    per_cent as per_cent,
)
from .scanpaths.view import (
    ScanView as ScanView,
)
from .scanpaths.view import (
    scan_view as scan_view,
)
from .scanpaths.wall import (
    scan_wall as scan_wall,
)

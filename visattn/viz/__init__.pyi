from .captions.animation import (
    animation_frame_size as animation_frame_size,
)
from .captions.animation import (
    caption_animation as caption_animation,
)
from .captions.panel import (
    caption_panel as caption_panel,
)
from .html.caption_page import (
    PageCaption as PageCaption,
)
from .html.caption_page import (
    PagePhrase as PagePhrase,
)
from .html.caption_page import (
    caption_page as caption_page,
)
from .html.document import (
    escape_text as escape_text,
)
from .html.document import (
    file_url as file_url,
)
from .html.document import (
    image_data_url as image_data_url,
)
from .html.document import (
    render_page as render_page,
)
from .html.explorer_page import (
    ExplorerLayer as ExplorerLayer,
)
from .html.explorer_page import (
    ExplorerMap as ExplorerMap,
)
from .html.explorer_page import (
    explorer_page as explorer_page,
)
from .html.explorer_page import (
    quantize_weights as quantize_weights,
)
from .html.index_page import (
    IndexEntry as IndexEntry,
)
from .html.index_page import (
    index_page as index_page,
)
from .html.index_page import (
    parse_index_page as parse_index_page,
)
from .html.index_page import (
    thumbnail as thumbnail,
)
from .html.index_page import (
    tile_images as tile_images,
)
from .html.photo_page import (
    photo_page as photo_page,
)
from .html.safe_text import (
    has_rtl_letters as has_rtl_letters,
)
from .html.safe_text import (
    sanitize_text as sanitize_text,
)
from .layout.gif import (
    encode_gif as encode_gif,
)
from .layout.grid import (
    TileGrid as TileGrid,
)
from .layout.grid import (
    compute_tile_grid as compute_tile_grid,
)
from .layout.grid import (
    compute_tile_size as compute_tile_size,
)
from .layout.grid import (
    create_titled_page as create_titled_page,
)
from .layout.grid import (
    draw_title as draw_title,
)
from .layout.grid import (
    title_bottom as title_bottom,
)
from .layout.text import (
    UnicodeFont as UnicodeFont,
)
from .layout.text import (
    load_font as load_font,
)
from .layout.text import (
    truncate_text as truncate_text,
)
from .layout.text import (
    wrap_text as wrap_text,
)
from .maps.colormap import (
    colormap_lut as colormap_lut,
)
from .maps.colormap import (
    negative_palette as negative_palette,
)
from .maps.colormap import (
    overlay_palette as overlay_palette,
)
from .maps.comparison import (
    MethodMap as MethodMap,
)
from .maps.comparison import (
    comparison_panel as comparison_panel,
)
from .maps.comparison import (
    format_range as format_range,
)
from .maps.contours import (
    draw_contours as draw_contours,
)
from .maps.contours import (
    draw_range_contours as draw_range_contours,
)
from .maps.crops import (
    crop_panel as crop_panel,
)
from .maps.crops import (
    draw_crop_frame as draw_crop_frame,
)
from .maps.heads import (
    LayerHeads as LayerHeads,
)
from .maps.heads import (
    head_grid as head_grid,
)
from .maps.heads import (
    head_tile_size as head_tile_size,
)
from .maps.heatmap import (
    map_to_rgba as map_to_rgba,
)
from .maps.heatmap import (
    overlay as overlay,
)
from .maps.heatmap import (
    quantize_levels as quantize_levels,
)
from .maps.legend import (
    draw_legend as draw_legend,
)
from .maps.resize import (
    resize_image as resize_image,
)
from .maps.resize import (
    resize_map as resize_map,
)
from .plots.attention_stats import (
    plot_attention_stats as plot_attention_stats,
)
from .scanpaths.animation import (
    scan_path_animation as scan_path_animation,
)
from .scanpaths.animation import (
    scan_path_grid_animation as scan_path_grid_animation,
)
from .scanpaths.canvas import (
    ImagePlacement as ImagePlacement,
)
from .scanpaths.canvas import (
    draw_patch as draw_patch,
)
from .scanpaths.canvas import (
    glimpse_mosaic as glimpse_mosaic,
)
from .scanpaths.canvas import (
    patch_to_rgb as patch_to_rgb,
)
from .scanpaths.canvas import (
    place_image as place_image,
)
from .scanpaths.coverage import (
    coverage_panel as coverage_panel,
)
from .scanpaths.panel import (
    glimpse_strip as glimpse_strip,
)
from .scanpaths.panel import (
    scan_path_panel as scan_path_panel,
)
from .scanpaths.path import (
    draw_number_marker as draw_number_marker,
)
from .scanpaths.path import (
    draw_scan_path as draw_scan_path,
)
from .scanpaths.path import (
    glimpse_colors as glimpse_colors,
)
from .scanpaths.probabilities import (
    class_colors as class_colors,
)
from .scanpaths.probabilities import (
    plot_probabilities as plot_probabilities,
)
from .scanpaths.probabilities import (
    top_classes as top_classes,
)
from .scanpaths.record import (
    ScanPathData as ScanPathData,
)
from .scanpaths.record import (
    format_percent as format_percent,
)

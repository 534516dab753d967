from .captions.alignment import (
    alignment_image_size as alignment_image_size,
    alignment_panel as alignment_panel,
)
from .captions.animation import (
    animation_frame_size as animation_frame_size,
    caption_animation as caption_animation,
)
from .captions.panel import (
    caption_panel as caption_panel,
    format_probability as format_probability,
)
from .detection.boxes import (
    LabeledBox as LabeledBox,
    box_color as box_color,
    draw_boxes as draw_boxes,
    draw_points as draw_points,
)
from .detection.panel import (
    ShownDetection as ShownDetection,
    detection_overview as detection_overview,
    detection_panel as detection_panel,
)
from .html.caption_page import (
    PageCaption as PageCaption,
    PagePhrase as PagePhrase,
    caption_page as caption_page,
)
from .html.document import (
    escape_text as escape_text,
    file_url as file_url,
    image_data_url as image_data_url,
    jpeg_data_url as jpeg_data_url,
    render_page as render_page,
)
from .html.explorer_page import (
    ExplorerLayer as ExplorerLayer,
    ExplorerMap as ExplorerMap,
    explorer_page as explorer_page,
    quantize_weights as quantize_weights,
)
from .html.history_page import (
    HistoryRow as HistoryRow,
    history_page as history_page,
)
from .html.index_page import (
    IndexEntry as IndexEntry,
    IndexRange as IndexRange,
    index_card as index_card,
    index_file as index_file,
    index_order as index_order,
    index_page as index_page,
    is_result_folder as is_result_folder,
    numbered_index_page as numbered_index_page,
    parse_index_page as parse_index_page,
    thumbnail as thumbnail,
    tile_images as tile_images,
)
from .html.notebook_caption import (
    notebook_caption as notebook_caption,
)
from .html.photo_page import (
    photo_page as photo_page,
)
from .html.question_page import (
    PageQuestion as PageQuestion,
    question_page as question_page,
)
from .html.safe_text import (
    has_rtl_letters as has_rtl_letters,
    sanitize_text as sanitize_text,
)
from .layout.gif import (
    encode_gif as encode_gif,
)
from .layout.grid import (
    TileGrid as TileGrid,
    compute_tile_grid as compute_tile_grid,
    compute_tile_size as compute_tile_size,
    create_titled_page as create_titled_page,
    draw_title as draw_title,
    title_bottom as title_bottom,
)
from .layout.text import (
    UnicodeFont as UnicodeFont,
    load_font as load_font,
    truncate_text as truncate_text,
    wrap_text as wrap_text,
)
from .maps.colormap import (
    colormap_lut as colormap_lut,
    negative_palette as negative_palette,
    overlay_palette as overlay_palette,
)
from .maps.comparison import (
    MethodMap as MethodMap,
    comparison_panel as comparison_panel,
    format_range as format_range,
)
from .maps.contours import (
    draw_contours as draw_contours,
    draw_range_contours as draw_range_contours,
)
from .maps.crops import (
    crop_panel as crop_panel,
    draw_crop_frame as draw_crop_frame,
)
from .maps.heads import (
    LayerHeads as LayerHeads,
    head_grid as head_grid,
    head_tile_size as head_tile_size,
)
from .maps.heatmap import (
    map_to_rgba as map_to_rgba,
    overlay as overlay,
    quantize_levels as quantize_levels,
)
from .maps.legend import (
    draw_legend as draw_legend,
)
from .maps.marks import (
    draw_cross as draw_cross,
    draw_frame as draw_frame,
    draw_region as draw_region,
)
from .maps.queries import (
    DrawnQuery as DrawnQuery,
    query_panel as query_panel,
)
from .maps.resize import (
    resize_image as resize_image,
    resize_map as resize_map,
)
from .maps.segmentation import (
    SegmentationTile as SegmentationTile,
    class_color as class_color,
    draw_errors as draw_errors,
    draw_gate as draw_gate,
    draw_labels as draw_labels,
    outlines as outlines,
    segmentation_panel as segmentation_panel,
)
from .plots.attention_stats import (
    plot_attention_stats as plot_attention_stats,
)
from .scanpaths.animation import (
    scan_path_animation as scan_path_animation,
    scan_path_grid_animation as scan_path_grid_animation,
)
from .scanpaths.canvas import (
    ImagePlacement as ImagePlacement,
    draw_patch as draw_patch,
    glimpse_mosaic as glimpse_mosaic,
    patch_to_rgb as patch_to_rgb,
    place_image as place_image,
)
from .scanpaths.coverage import (
    coverage_panel as coverage_panel,
)
from .scanpaths.panel import (
    glimpse_strip as glimpse_strip,
    scan_path_panel as scan_path_panel,
)
from .scanpaths.path import (
    contrasting_color as contrasting_color,
    draw_number_marker as draw_number_marker,
    draw_scan_path as draw_scan_path,
    glimpse_colors as glimpse_colors,
)
from .scanpaths.probabilities import (
    class_colors as class_colors,
    plot_probabilities as plot_probabilities,
    top_classes as top_classes,
)
from .scanpaths.record import (
    ReadLabel as ReadLabel,
    ScanPathData as ScanPathData,
    format_percent as format_percent,
    label_text as label_text,
    read_labels as read_labels,
)

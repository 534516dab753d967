from .gif import (
    encode_gif as encode_gif,
)
from .grid import (
    TileGrid as TileGrid,
    compute_tile_grid as compute_tile_grid,
    compute_tile_size as compute_tile_size,
    create_titled_page as create_titled_page,
    draw_title as draw_title,
    title_bottom as title_bottom,
)
from .text import (
    UnicodeFont as UnicodeFont,
    load_font as load_font,
    truncate_text as truncate_text,
    wrap_text as wrap_text,
)

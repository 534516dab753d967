from .gif import (
    encode_gif as encode_gif,
)
from .grid import (
    TileGrid as TileGrid,
)
from .grid import (
    compute_tile_grid as compute_tile_grid,
)
from .grid import (
    compute_tile_size as compute_tile_size,
)
from .grid import (
    create_titled_page as create_titled_page,
)
from .grid import (
    draw_title as draw_title,
)
from .grid import (
    title_bottom as title_bottom,
)
from .text import (
    UnicodeFont as UnicodeFont,
)
from .text import (
    load_font as load_font,
)
from .text import (
    truncate_text as truncate_text,
)
from .text import (
    wrap_text as wrap_text,
)

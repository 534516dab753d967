from .gif import (
    encoded_gif as encoded_gif,
)
from .grid import (
    TileGrid as TileGrid,
)
from .grid import (
    tile_grid as tile_grid,
)
from .grid import (
    tile_size as tile_size,
)
from .grid import (
    title_end as title_end,
)
from .grid import (
    titled_page as titled_page,
)
from .grid import (
    write_title as write_title,
)
from .text import (
    Letters as Letters,
)
from .text import (
    shortened as shortened,
)
from .text import (
    typeface as typeface,
)
from .text import (
    wrapped as wrapped,
)

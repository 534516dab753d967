from .caption_page import (
    PageCaption as PageCaption,
)
from .caption_page import (
    PagePhrase as PagePhrase,
)
from .caption_page import (
    caption_page as caption_page,
)
from .document import (
    escape_text as escape_text,
)
from .document import (
    file_url as file_url,
)
from .document import (
    image_data_url as image_data_url,
)
from .document import (
    render_page as render_page,
)
from .explorer_page import (
    ExplorerLayer as ExplorerLayer,
)
from .explorer_page import (
    ExplorerMap as ExplorerMap,
)
from .explorer_page import (
    explorer_page as explorer_page,
)
from .explorer_page import (
    quantize_weights as quantize_weights,
)
from .index_page import (
    IndexEntry as IndexEntry,
)
from .index_page import (
    index_page as index_page,
)
from .index_page import (
    parse_index_page as parse_index_page,
)
from .index_page import (
    thumbnail as thumbnail,
)
from .index_page import (
    tile_images as tile_images,
)
from .photo_page import (
    photo_page as photo_page,
)
from .safe_text import (
    has_rtl_letters as has_rtl_letters,
)
from .safe_text import (
    sanitize_text as sanitize_text,
)

from .caption_page import (
    PageCaption as PageCaption,
    PagePhrase as PagePhrase,
    caption_page as caption_page,
)
from .document import (
    escape_text as escape_text,
    file_url as file_url,
    image_data_url as image_data_url,
    render_page as render_page,
)
from .explorer_page import (
    ExplorerLayer as ExplorerLayer,
    ExplorerMap as ExplorerMap,
    explorer_page as explorer_page,
    quantize_weights as quantize_weights,
)
from .index_page import (
    IndexEntry as IndexEntry,
    index_page as index_page,
    parse_index_page as parse_index_page,
    thumbnail as thumbnail,
    tile_images as tile_images,
)
from .photo_page import (
    photo_page as photo_page,
)
from .safe_text import (
    has_rtl_letters as has_rtl_letters,
    sanitize_text as sanitize_text,
)

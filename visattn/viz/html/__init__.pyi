from .caption_page import (
    ShownCaption as ShownCaption,
)
from .caption_page import (
    ShownPhrase as ShownPhrase,
)
from .caption_page import (
    caption_page as caption_page,
)
from .document import (
    escaped_text as escaped_text,
)
from .document import (
    file_address as file_address,
)
from .document import (
    image_address as image_address,
)
from .document import (
    sealed_document as sealed_document,
)
from .explorer_page import (
    ExploredLayer as ExploredLayer,
)
from .explorer_page import (
    ExploredMap as ExploredMap,
)
from .explorer_page import (
    eight_bits as eight_bits,
)
from .explorer_page import (
    explorer_page as explorer_page,
)
from .index_page import (
    IndexEntry as IndexEntry,
)
from .index_page import (
    index_entries as index_entries,
)
from .index_page import (
    index_page as index_page,
)
from .index_page import (
    thumbnail as thumbnail,
)
from .index_page import (
    tiled as tiled,
)
from .photo_page import (
    photo_page as photo_page,
)
from .safe_text import (
    runs_leftwards as runs_leftwards,
)
from .safe_text import (
    shown_text as shown_text,
)

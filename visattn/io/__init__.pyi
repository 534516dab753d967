from .atomic import (
    remove_parts as remove_parts,
)
from .atomic import (
    replacing as replacing,
)
from .atomic import (
    write_whole as write_whole,
)
from .regular_files import (
    open_regular as open_regular,
)
from .safe_arrays import (
    read_array as read_array,
)
from .safe_paths import (
    SafeDirectory as SafeDirectory,
)
from .safe_paths import (
    check_name as check_name,
)
from .safe_paths import (
    walk_files as walk_files,
)
from .safe_text import (
    bounded_bytes as bounded_bytes,
)
from .safe_text import (
    named as named,
)
from .safe_text import (
    parsed_json as parsed_json,
)
from .safe_text import (
    plain_text as plain_text,
)
from .safe_text import (
    shown as shown,
)
from .safe_text import (
    unpacked_gzip as unpacked_gzip,
)
from .trusted_modules import (
    is_trusted as is_trusted,
)
from .trusted_modules import (
    named_modules as named_modules,
)
from .trusted_modules import (
    users_modules as users_modules,
)

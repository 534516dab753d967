from .recorder import (
    Recording as Recording,
)
from .subject import (
    Subject as Subject,
)

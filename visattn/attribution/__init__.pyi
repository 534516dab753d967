from .cam import (
    class_activation_map as class_activation_map,
)
from .methods import (
    METHODS as METHODS,
    method as method,
)
from .targets import (
    Score as Score,
)

from .analysis import (
    analyze_model as analyze_model,
)
from .cam import (
    class_activation_map as class_activation_map,
)
from .methods import (
    METHODS as METHODS,
    Method as Method,
    get_method as get_method,
    method as method,
    supported_methods as supported_methods,
)
from .targets import (
    DenseTarget as DenseTarget,
    Score as Score,
)

from .subject import (
    Subject as Subject,
)

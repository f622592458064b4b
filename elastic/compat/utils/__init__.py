"""The small tools that the original library exported.

Knows their names. Nothing happens at import: no handler is added to a logger, no program started.
"""

from runai.utils import attribute, flock, gpus, log, random
from runai.utils.attribute import Attribute
from runai.utils.flock import Flock
from runai.utils.hook import Hook

__all__ = ["Attribute", "Flock", "Hook", "attribute", "flock", "gpus", "log", "random"]

"""The utilities that the original library exported.

The import has no side effects: it adds no log handler and starts no program.
"""

from runai.utils import attribute, flock, gpus, log, random
from runai.utils.attribute import Attribute
from runai.utils.flock import Flock
from runai.utils.hook import Hook

__all__ = ["Attribute", "Flock", "Hook", "attribute", "flock", "gpus", "log", "random"]

"""Report the metrics and the progress of a Keras model by itself, under the original names."""

import runai.elastic.requires_keras  # noqa: F401 - first: it says what to install
from runai.reporter.keras.autologging import (
    Reporter,
    autolog,
    autologged,
    disableAutoLog,
    disableAutolog,
)

__all__ = ["Reporter", "autolog", "autologged", "disableAutoLog", "disableAutolog"]

"""Automatic reports of a Keras model's metrics and progress, under the original names."""

from runai.elastic.installation import needs_keras

with needs_keras():
    from runai.reporter.keras.autologging import (
        Reporter,
        autolog,
        autologged,
        disableAutoLog,
        disableAutolog,
    )

__all__ = ["Reporter", "autolog", "autologged", "disableAutoLog", "disableAutolog"]

"""Elastic training: the same global batch at any number of GPUs.

Knows nothing of a framework and imports none: `runai.elastic.torch` and `runai.elastic.keras` do.
What `init` of either found stands here as attributes, as in the original library: `steps`,
`batch_size`, `global_batch_size`, `gpus`, `master`. Used by training scripts.
"""

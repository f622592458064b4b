"""The hub service: the owner of decisions about GPUs, and everything that reaches it.

`scheduler` decides, `clusters` act, `controller` drives the one with the other, `api` and
`client` let people and programs take part. Import from the modules; nothing lives here.
"""

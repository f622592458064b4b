"""Changes of the ledger's schema, in the order in which alembic makes them."""

"""Alembic environment: run the revisions on the connection of `sqlite.upgrade`.

Alembic loads this file as module `env_py`; a plain import does nothing.
"""

from alembic import context

if __name__ == "env_py":
    context.configure(
        transactional_ddl=True,  # `sqlite.upgrade` begins and commits; SQLite rolls back DDL, too
        connection=context.config.attributes["connection"],
        # SQLite cannot alter most things in place: alembic copies the table instead.
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()

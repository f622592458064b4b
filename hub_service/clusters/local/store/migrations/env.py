"""Run the revisions on the connection that `sqlite.upgrade` passes.

Alembic loads this file, under a name of its own; as a plain import it does nothing.
"""

from alembic import context

if __name__ == "env_py":
    context.configure(
        transactional_ddl=True,  # `sqlite.upgrade` begins and commits; SQLite can roll back DDL
        connection=context.config.attributes["connection"],
        render_as_batch=True,  # SQLite cannot alter most things in place: alembic copies the table
    )
    with context.begin_transaction():
        context.run_migrations()

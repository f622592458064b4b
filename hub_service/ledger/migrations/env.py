"""Run the revisions on the connection that `store` hands over; alembic loads this file."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    # SQLite cannot alter most things in place: alembic copies the table then.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()

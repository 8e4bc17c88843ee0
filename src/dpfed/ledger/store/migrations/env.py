"""How alembic runs here: inside the transaction of whoever opens the ledger."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()

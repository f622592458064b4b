"""Messages between processes: schemas, amounts, errors, elastic messages."""

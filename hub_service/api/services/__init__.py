"""Operations behind the routes: submit, explain, stream events."""

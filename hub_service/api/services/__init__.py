"""Operations behind the routes: submit, explain, follow."""

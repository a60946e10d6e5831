"""The operator page: facts of a federation as JSON, a stream of changes, actions behind the operator's token."""

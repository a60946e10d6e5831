"""The commands of `semisilo`: they parse, call and print. Nothing imports them but the console script."""

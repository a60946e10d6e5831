"""`semisilo demo`: a real federation of processes on this machine. Imported by `semisilo.cli`."""

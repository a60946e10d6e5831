"""How a light process and its compute process work together: the typed messages between them. Both sides may import it;
it imports nothing but `semisilo.common.config` and `semisilo.common.errors`."""

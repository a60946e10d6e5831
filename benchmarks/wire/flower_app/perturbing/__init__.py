"""The Flower app of the benchmark: ServerApp and ClientApp with the Message API."""

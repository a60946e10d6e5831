"""What experiment trackers are told of studies: TensorBoard event files and MLflow runs.

Everything follows from the ledger, so nothing is lost by a kill and nothing is told twice, and a study that is over can
be told as well. `coordinator serve` leaves it to a process of its own: a tracker that fails or hangs disturbs no round.
"""

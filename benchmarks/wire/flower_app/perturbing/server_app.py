"""FedAvg as Flower ships it, without evaluation; writes down when each round began and what memory was taken before."""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.wire.job import initial_model
from benchmarks.wire.watch import peak_bytes

app = ServerApp()


class TimedFedAvg(FedAvg):
    """FedAvg that keeps the moments at which rounds begin."""

    began: list[float]

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord,
                        grid: Grid) -> Iterable[Message]:
        """As in FedAvg."""
        self.began.append(time.time())
        return super().configure_train(server_round, arrays, config, grid)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Waits for all silos, then runs the rounds."""
    settings = context.run_config
    import_bytes = peak_bytes(os.getpid())
    silos = int(settings["silos"])
    while len(list(grid.get_node_ids())) < silos:
        time.sleep(0.2)
    strategy = TimedFedAvg(fraction_evaluate=0.0, min_train_nodes=silos, min_available_nodes=silos)
    strategy.began = []
    model = initial_model(int(settings["parameters"]))
    arrays = ArrayRecord({name: Array(values) for name, values in model.items()})
    del model
    result = strategy.start(grid, arrays, num_rounds=int(settings["rounds"]))
    ended = time.time()
    answered = [len(metrics) for metrics in result.train_metrics_clientapp.values()]
    record = {"began": strategy.began, "ended": ended, "import_bytes": import_bytes, "rounds": len(answered),
              "pid": os.getpid(), "peak_bytes": peak_bytes(os.getpid())}
    path = Path(str(settings["record"]))
    path.with_suffix(".part").write_text(json.dumps(record))
    path.with_suffix(".part").rename(path)

"""Receives the model, perturbs it, and replies with the whole model, as Flower's documentation does it."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.wire.job import add_perturbation

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """One round of one silo."""
    received = msg.content.array_records["arrays"]
    model = {name: array.numpy().copy() for name, array in received.items()}
    add_perturbation(model, silo=int(context.node_config["silo"]),
                     round=int(msg.content.config_records["config"]["server-round"]),
                     density=float(context.run_config["density"]))
    arrays = ArrayRecord({name: Array(values) for name, values in model.items()})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=msg)

"""What runs inside NVIDIA FLARE's processes: the initial model, the moments of the rounds, the silo's perturbation."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey, make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from benchmarks.wire.job import initial_model, perturbation
from benchmarks.wire.watch import peak_bytes

__all__ = ["PerturbingExecutor", "SeededPersistor"]


class SeededPersistor(ModelPersistor):  # type: ignore[misc]
    """Gives the controller the initial model, and saves each round's model as NVFLARE's own NumPy persistor does."""

    def __init__(self, parameters: int, record: str) -> None:
        super().__init__()
        self._parameters = parameters
        self._record = Path(record)
        self._import_bytes = 0
        self._began: list[float] = []
        self._saved: list[float] = []

    def load_model(self, fl_ctx: FLContext) -> ModelLearnable:
        """The model before round 1; memory is read before it is made."""
        self._import_bytes = peak_bytes(os.getpid())
        return make_model_learnable(weights=initial_model(self._parameters), meta_props={})

    def save_model(self, model: ModelLearnable, fl_ctx: FLContext) -> None:
        """Writes the model after each round."""
        workspace = fl_ctx.get_workspace()
        folder = Path(workspace.get_result_root(fl_ctx.get_job_id())) / "models"
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "server.npz", **model[ModelLearnableKey.WEIGHTS])
        self._saved.append(time.time())

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Notes when rounds begin, and writes everything down at the end."""
        if event_type == AppEventType.ROUND_STARTED:
            self._began.append(time.time())
        elif event_type == EventType.ABOUT_TO_END_RUN:
            content: dict[str, Any] = {"began": self._began, "ended": self._saved[-1] if self._saved else 0.0,
                                       "rounds": len(self._saved), "import_bytes": self._import_bytes,
                                       "pid": os.getpid(), "peak_bytes": peak_bytes(os.getpid())}
            self._record.with_suffix(".part").write_text(json.dumps(content))
            self._record.with_suffix(".part").rename(self._record)


class PerturbingExecutor(Executor):  # type: ignore[misc]
    """Answers with a difference, one of the two documented kinds of answers."""

    def __init__(self, density: float) -> None:
        super().__init__()
        self._density = density
        self._silo = -1

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """One round of one silo."""
        if self._silo < 0:
            self._silo = int(str(fl_ctx.get_identity_name()).removeprefix("silo"))
        received = FLModelUtils.from_shareable(shareable)
        count = sum(values.size for values in received.params.values())
        difference = perturbation(count, silo=self._silo, round=(received.current_round or 0) + 1,
                                  density=self._density)
        return FLModelUtils.to_shareable(FLModel(params_type=ParamsType.DIFF, params=difference, meta={
            "NUM_STEPS_CURRENT_ROUND": 1}))

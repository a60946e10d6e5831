"""Real updates to measure the codec on: a network after each epoch of ordinary training.

    python benchmarks/codec/updates.py SET.npz OUT.npz [--model wide_resnet_28_2] [--count 4096] [--epochs 3]

SET.npz has uint8 `train_images`, N x H x W or N x H x W x 3, and `train_labels`, N. OUT.npz gets the parameters at the
start and after each epoch as "epoch/name", so that the difference of two epochs is an update of a silo.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from semisilo.common.learning.sgd import SGDSettings, make_optimiser, step
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.factory import build_model

BATCH = 32


def main() -> None:
    """Trains and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="wide_resnet_28_2")
    parser.add_argument("--count", type=int, default=4096, help="images of an epoch")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--optimiser", choices=("sgd", "adamw"), default="sgd")
    options = parser.parse_args()
    images, labels = load(options.images, options.count)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build_model(ModelSettings(name=options.model, classes=tuple(str(label) for label in range(10))),
                        channels=images.shape[1], size=images.shape[2])
    parameters = dict(model.named_parameters())
    saved = {f"0/{name}": parameter.detach().numpy().copy() for name, parameter in parameters.items()}
    sgd = make_optimiser(model, SGDSettings(lr=0.03))
    adamw = torch.optim.AdamW(parameters.values(), lr=1e-3) if options.optimiser == "adamw" else None
    for epoch in range(1, options.epochs + 1):
        model.train()
        losses = []
        for chosen in torch.split(torch.randperm(len(images)), BATCH):
            loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
            if adamw is None:
                step(sgd, loss)
            else:
                adamw.zero_grad()
                torch.autograd.backward(loss)
                adamw.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: mean loss {np.mean(losses):.3f}", flush=True)
        saved |= {f"{epoch}/{name}": parameter.detach().numpy().copy() for name, parameter in parameters.items()}
    np.savez(options.out, allow_pickle=False, **saved)


def load(path: Path, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `count` images (N, channels, side, side), float32 of mean 0 and deviation 1, and labels (N,)."""
    with np.load(path) as arrays:
        images, labels = arrays["train_images"][:count], arrays["train_labels"][:count]
    tensor = torch.from_numpy(images).float()
    tensor = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
    return (tensor - tensor.mean()) / tensor.std(), torch.from_numpy(labels).long()


if __name__ == "__main__":
    main()

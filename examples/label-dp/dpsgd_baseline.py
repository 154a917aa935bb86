"""The baseline beside private labels: DP-SGD by Opacus, which protects images and labels.

One model is trained on the true labels of all images, as by whoever holds them. The noise is that
of the accounting in ``flower_ldp``: epsilon and delta are of the whole training, for one example
**replaced**. Opacus draws noise and batches from torch's generator, which is no cryptographic one.
No gate and no ledger stands around it: it is for comparison.

    pip install 'flower-ldp[dpsgd,examples]' opacus
    python examples/label-dp/dpsgd_baseline.py --epochs 10
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Annotated

import torch
import typer
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

APP = Path(__file__).resolve().parent
sys.path.insert(0, str(APP))

from label_dp_example import data, model  # noqa: E402

from flower_ldp.accounting.dpsgd import SampledGaussian, noise_multiplier  # noqa: E402
from flower_ldp.config import DPSGDConfig, load_dpsgd_config  # noqa: E402

logging.getLogger().handlers.clear()  # importing Opacus adds one


def train(
    rows: data.Split, chosen: DPSGDConfig, learning_rate: float, seed: int
) -> tuple[nn.Module, SampledGaussian]:
    """Return the trained model, and what was accounted for."""
    size = min(chosen.batch_size, len(rows.labels))
    steps, rate = round(len(rows.labels) / size) * chosen.epochs, size / len(rows.labels)
    noise = noise_multiplier(chosen.epsilon, chosen.delta, sample_rate=rate, steps=steps)
    net = model.build(rows.side, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its generator is not cryptographic; its hooks
        private, optimizer, batches = PrivacyEngine().make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=0.9),
            data_loader=DataLoader(
                TensorDataset(rows.images, torch.from_numpy(rows.labels)), batch_size=size
            ),
            noise_multiplier=noise,
            max_grad_norm=chosen.max_grad_norm,
        )
        taken = 0
        while taken < steps:  # a pass of Opacus's loader may be one batch shorter
            for images, labels in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(private(images), labels).backward()
                optimizer.step()
                taken += 1
                if taken == steps:
                    break
    private.remove_hooks()
    return net, SampledGaussian(noise, rate, steps)


def main(
    config: Annotated[Path, typer.Option(help="Epsilon, delta, epochs, batch size, clipping.")] = (
        APP.parents[1] / "configs" / "dpsgd.yaml"
    ),
    source: Annotated[
        str, typer.Option("--data", help="digits, or an npz file in MNIST's layout.")
    ] = "digits",
    evaluate_on: Annotated[str, typer.Option(help="test or validation.")] = "test",
    learning_rate: Annotated[float, typer.Option(help="Of SGD with momentum 0.9.")] = 0.1,
    epochs: Annotated[int | None, typer.Option(min=1, help="In place of the file's.")] = None,
    seed: Annotated[int, typer.Option(help="Of the first weights and the split.")] = 1,
) -> None:
    """Train once by DP-SGD and print the noise, what it costs and the accuracy."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    chosen = load_dpsgd_config(config)
    if epochs is not None:
        chosen = chosen.model_copy(update={"epochs": epochs})
    rows, held = data.load(source, evaluate_on, seed)
    net, plan = train(rows, chosen, learning_rate, seed)
    print(
        f"noise multiplier {plan.noise_multiplier:.4f}, {plan.steps:,} steps, "
        f"sampling rate {plan.sample_rate:.4g}: epsilon {chosen.epsilon:g}, delta "
        f"{chosen.delta:g} per example"
    )
    right = model.accuracy(net, held.images, torch.from_numpy(held.labels))
    print(f"dp-sgd: {right:.1%} of {len(held.labels):,} images")


if __name__ == "__main__":
    typer.run(main)

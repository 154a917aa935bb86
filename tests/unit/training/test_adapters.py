"""Adapters over a frozen base: what is sent, what learns, and what leaves."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.training.gated import Site, arrays_of, state_of, without_noise

pytest.importorskip("torch")
pytest.importorskip("scipy")

import torch
from torch import nn

from flower_ldp.clients.session import CountSession, in_session
from flower_ldp.mechanisms.example_sums import ExampleMean
from flower_ldp.training import private_accuracy
from flower_ldp.training.private import sent_tensors
from flower_ldp.wire.layout import named_by
from tests.unit.training.gated import LIKE, ROWS

_silent = pytest.fixture(autouse=True)(without_noise)


class Lora(nn.Module):
    """A frozen layer with an update of low rank, as peft's."""

    def __init__(self, base: nn.Linear, *, learns: bool = True) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.Linear(2, 1, bias=False).requires_grad_(learns)
        self.lora_B = nn.Linear(1, 1, bias=False).requires_grad_(learns)
        self.dropout = nn.Dropout(0.0)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = self.lora_B(self.lora_A(self.dropout(x)))
        found: torch.Tensor = self.base_layer(x) + self.scale * low
        return found


def made() -> nn.Module:
    torch.manual_seed(0)
    return Lora(nn.Linear(2, 1))


WHOLE = state_of(made())
ADAPTERS = {name: WHOLE[name] for name in named_by(["lora_*"], WHOLE)}


def asked(folder: Path, arrays: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    """Return the arrays of a site's reply."""
    folder.mkdir(exist_ok=True)
    site = Site(folder, mode="simulation", arguments={"model": made, **arguments})
    return arrays_of(site.ask(arrays=arrays))


def test_adapters_alone_travel_and_learn_as_in_the_whole_model(tmp_path: Path) -> None:
    alone = asked(tmp_path / "alone", ADAPTERS, public_base=True)
    whole = asked(tmp_path / "whole", WHOLE)
    assert list(alone) == ["lora_A.weight", "lora_B.weight"]
    for name, array in whole.items():
        same = np.array_equal(array, WHOLE[name])
        assert same != (name in ADAPTERS), name
        assert same or np.array_equal(array, alone[name])


def test_what_the_message_has_of_the_base_counts(tmp_path: Path) -> None:
    """And not what the app has: of the message's bias alone the gradients are others."""
    bias = {"base_layer.bias": WHOLE["base_layer.bias"] + 9}
    found = asked(tmp_path / "bias", ADAPTERS | bias, public_base=True)
    whole = asked(tmp_path / "whole", WHOLE | bias)
    assert found.keys() == (ADAPTERS | bias).keys()
    assert all(np.array_equal(array, whole[name]) for name, array in found.items())


@pytest.mark.parametrize(
    ("arrays", "public_base", "error"),
    [
        (ADAPTERS, False, r"'base_layer.weight', 'scale'\]. .*say public_base=True"),
        ({"lora_A.weight": WHOLE["lora_A.weight"]}, True, r"\['lora_B.weight'\]$"),
        (ADAPTERS | {"other": WHOLE["scale"]}, True, r"\['other'\]$"),
        (ADAPTERS | {"other": WHOLE["scale"]}, False, r"'other', 'scale'\]$"),
        (ADAPTERS | {"scale": np.zeros(3, np.float32)}, True, r"\['scale'\]$"),
    ],
)
def test_no_more_may_be_missing_than_a_public_base(
    arrays: dict[str, Any], public_base: bool, error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        sent_tensors(arrays, made(), public_base)


def test_shared_weights_may_come_by_either_name() -> None:
    model = made()
    model.twin = model.base_layer
    found = sent_tensors(ADAPTERS | {"twin.bias": WHOLE["base_layer.bias"] + 1}, model, True)
    assert found.keys() == {*ADAPTERS, "base_layer.bias"}
    assert found["base_layer.bias"].item() == WHOLE["base_layer.bias"].item() + 1


class Tied(nn.Module):
    """Two layers that share a weight, as a language model's first and last."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(2, 2).requires_grad_(False)
        self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 2)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.base(self.first(x))).sum(1, keepdim=True)
        return found


def tied() -> nn.Module:
    torch.manual_seed(0)
    return Tied()


def test_a_shared_weight_that_learns_comes_by_its_first_name(tmp_path: Path) -> None:
    """As ``named_parameters`` has it; where both names are sent, both have the same numbers."""
    sent = {n: p.detach().numpy().copy() for n, p in tied().named_parameters() if p.requires_grad}
    assert list(sent) == ["first.weight", "first.bias", "last.bias"]
    found = asked(tmp_path / "once", sent, model=tied, public_base=True)
    assert found.keys() == sent.keys()
    whole = asked(tmp_path / "whole", state_of(tied()), model=tied)
    assert all(np.array_equal(array, whole[name]) for name, array in found.items())
    assert np.array_equal(whole["first.weight"], whole["last.weight"])
    assert not np.array_equal(whole["first.weight"], sent["first.weight"])


def test_a_count_is_of_the_adapters_sent() -> None:
    low = {name: np.ones_like(array) * 100 for name, array in ADAPTERS.items()}
    session = CountSession(ExampleMean(100.0, len(ROWS)), "row", low)
    with in_session(session):
        private_accuracy(
            None,  # type: ignore[arg-type]
            made(),
            ROWS,
            like=LIKE,
            right=lambda of, row: float(of(row[0]) > 1000),
            public_base=True,
        )
    assert session.total == len(ROWS) * session.mechanism.rounded(1.0)


def test_pefts_adapters_learn_and_its_base_stays(tmp_path: Path) -> None:
    """With dropout, and a head that peft trains whole."""
    peft = pytest.importorskip("peft")

    def adapted() -> Any:
        torch.manual_seed(0)
        layers = nn.Sequential(
            OrderedDict(first=nn.Linear(2, 4), act=nn.GELU(), head=nn.Linear(4, 1))
        )
        given = {"target_modules": ["first"], "modules_to_save": ["head"], "lora_dropout": 0.5}
        return peft.get_peft_model(layers, peft.LoraConfig(r=2, **given))

    sent = {
        n: p.detach().numpy().copy() for n, p in adapted().named_parameters() if p.requires_grad
    }
    assert named_by(["lora_*", "modules_to_save.*"], state_of(adapted())) == tuple(sent)
    found = asked(tmp_path, sent, model=adapted, public_base=True)
    assert found.keys() == sent.keys()
    moved = {name for name in sent if not np.array_equal(sent[name], found[name])}
    # The first layer's gradient is zero in its first step: what follows it is zeros.
    assert moved == sent.keys()

"""Apps of Flower's repository: their data, their settings, and how each becomes private."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flower_ldp.accounting.dpsgd import noise_multiplier

DELTA = 1e-5
COMMIT = "fdef7afb1dca3030553be302366cfd285ed6632c"
Config = Mapping[str, bool | float | int | str]


@dataclass(frozen=True)
class Route:
    """How an app becomes private: the clients' policy, and settings of its run.

    ``policy`` are the numbers of a DP-SGD plan, of each site: rounds, steps, rate, noise and
    examples; empty for codewords. ``is_vertical``: a row has columns at each node.
    """

    name: str
    unit: str
    policy: Config = field(default_factory=dict)
    config: Config = field(default_factory=dict)
    is_vertical: bool = False


@dataclass(frozen=True)
class App:
    """An app: its folder under ``examples``, its package, nodes, configuration and data.

    ``reason`` says what is not as it should be.
    """

    name: str
    package: str
    data: str
    metric: str = "accuracy"
    nodes: int = 5
    config: Config = field(default_factory=dict)
    route: Route | None = None
    reason: str = ""

    def near(self, private: float, fedavg: float, constant: float) -> bool:
        """Say whether a private figure is near FedAvg's."""
        if self.metric == "accuracy":
            return private >= fedavg - 0.05
        return private <= fedavg + 0.1 * (constant - fedavg)


def dpsgd(
    rounds: int, steps: int, rate: float, examples: int, epsilon: float = 8.0, **config: float
) -> Route:
    """Return DP-SGD per row, with the noise that epsilon and a delta of 1e-5 need."""
    noise = noise_multiplier(epsilon, DELTA, sample_rate=rate, steps=rounds * steps)
    noise = round(noise * (1 + 1e-4), 4)  # above it: a policy has few digits
    plan = {"rounds": rounds, "steps": steps, "rate": rate, "noise": noise}
    policy = {**plan, "examples": examples, "epsilon": epsilon}
    return Route("DP-SGD", "row", policy, config)


_RGB = "MNIST, shaped as CIFAR-10"
APPS = (
    App(
        "quickstart-pytorch",
        "pytorchexample",
        _RGB,
        config={"learning-rate": 0.01, "fraction-evaluate": 0.0},
        route=dpsgd(8, 20, 0.03, 4_800, **{"learning-rate": 1.0, "num-server-rounds": 8}),
    ),
    App(
        "quickstart-sklearn",
        "sklearnexample",
        "MNIST, 27 low frequencies",
        nodes=400,
        config={"num-server-rounds": 5},
        route=Route("codewords, asked once", "client", config={"num-server-rounds": 16}),
    ),
    App(
        "quickstart-pytorch-lightning",
        "pytorchlightning_example",
        "MNIST",
        "squared error",
        route=dpsgd(10, 20, 0.05, 3_600, **{"num-server-rounds": 10}),
        reason="eight settings with Adam had 0.0565 to 0.0632 on held-out rows, five with momentum "
        "0.0599 to 0.0698, a constant 0.0693",
    ),
    App(
        "quickstart-fastai",
        "fastai_example",
        "MNIST, 32 x 32",
        config={"fraction-train": 1.0},
        route=dpsgd(3, 40, 0.02, 4_800),
        reason="1.2 million weights; its one trial, stopped after a round, had 12 %, too",
    ),
    App(
        "quickstart-huggingface",
        "huggingface_example",
        "WikiText-2: article or not",
        config={"fraction-train": 1.0, "fraction-evaluate": 0.0},
        route=dpsgd(3, 60, 0.02, 6_400),
        reason="article or preposition: seven settings learned nothing, 49 to 51 % on "
        "held-out rows, where the same steps without noise have 87 %",
    ),
    App(
        "fl-tabular",
        "fltabular",
        "breast cancer",
        config={"num-server-rounds": 10},
        route=dpsgd(10, 4, 0.25, 72),
    ),
    App(
        "federated-vae",
        "fedvaeexample",
        _RGB,
        "squared error",
        config={"learning-rate": 0.05, "num-server-rounds": 5},
        route=dpsgd(5, 40, 0.03, 4_800, **{"learning-rate": 0.004}),
        reason="four trials had 0.205 to 0.243 on held-out rows, a constant 0.212",
    ),
    App(
        "opacus",
        "opacus_fl",
        _RGB,
        route=dpsgd(3, 12, 0.05, 4_800),
        reason="55 lines: its own calls of Opacus go",
    ),
    App(
        "advanced-pytorch",
        "pytorch_example",
        "MNIST, Dirichlet(1)",
        config={"fraction-train": 1.0, "fraction-evaluate": 0.0},
        route=dpsgd(10, 20, 0.03, 3_606),
        reason="its random crops and flips go: with them, four trials had 73 to 81 % on held-out "
        "rows, without them 92.6 %",
    ),
    App(
        "custom-mods",
        "custom_mods",
        _RGB,
        config={"fraction-evaluate": 0.0},
        route=dpsgd(3, 70, 0.02, 4_800, **{"learning-rate": 0.3}),
        reason="the network of quickstart-pytorch, nearly at that app's earlier setting",
    ),
    App(
        "fl-dp-sa",
        "fl_dp_sa",
        "MNIST",
        config={"num-sampled-clients": 5},
        route=dpsgd(8, 20, 0.04, 4_800),
        reason="92 lines: SecAgg+, clipping and the server's old workflow go",
    ),
    App(
        "vertical-fl",
        "vertical_fl",
        "breast cancer, by columns",
        nodes=3,
        config={"feature-splits": "10,10,10"},
        route=Route(
            "split learning, one bit of a row from each party, once",
            "row, of all parties together, with the bottoms held fixed "
            "([what that covers](embedding.md#what-the-epsilon-covers))",
            config={"out-feature-dim-clientapp": 1},
            is_vertical=True,
        ),
        reason="trials had 92.2 % on held-out tenths, and 96.6 % with numbers in place of bits. "
        "36 lines: the server asks by blocks",
    ),
)
_TREES = "trees: no mechanism here protects them"
#: Apps out of reach, and why.
OTHERS = {
    "quickstart-jax": "per-row gradients are torch's; as codewords its network is too large",
    "quickstart-tensorflow": "per-row gradients are torch's; as codewords its network is too large",
    "quickstart-xgboost": _TREES,
    "quickstart-catboost": _TREES,
    "quickstart-monai": "its network has batch normalization, whose averages are no row's own",
    "flowertune-vit": "its pretrained weights need a hub",
    "flowertune-llm": "its pretrained weights need a hub",
}

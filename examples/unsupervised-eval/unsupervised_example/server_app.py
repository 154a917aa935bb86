"""The server: SignDS training and a score of private predictions; each client is asked once."""

from dataclasses import replace
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flower_ldp.config import from_config
from flower_ldp.errors import ConfigError
from flower_ldp.strategies import (
    ClientPool,
    ProtectedEvalStrategy,
    ProxyCodebook,
)
from unsupervised_example import data, model, report

app = ServerApp()


def make_strategy(
    context: Context, public: data.Images, net: model.ClusteringAutoencoder
) -> ProtectedEvalStrategy:
    """Return SignDS training with the evaluation that the run configuration names."""
    run = context.run_config
    # A relative path is looked up beside this file, an absolute one is taken as it is.
    source = Path(__file__).parent / str(run["private-config"])
    from_file = from_config(source)
    config, evaluation = from_file.config, from_file.config.encrypt.laplace_eval
    if config.encrypt.encrypt_train_type != "SIGNDS":
        raise ConfigError(f"{source}: encrypt_train_type must be SIGNDS, got NOT_ENCRYPT")

    def on_public_images(arrays: ArrayRecord) -> object:
        net.load_state_dict(arrays.to_torch_state_dict())
        return model.predict(net, public)

    metrics = evaluation.metric_mechanisms()
    if run["protection"] == "laplace":
        mechanism = evaluation.mechanism(model.CLUSTERS)
    elif run["protection"] == "codebook":
        mechanism = ProxyCodebook(
            float(run["codebook-epsilon"]), on_public_images, rows=evaluation.rows
        )
        metrics["loss"] = replace(metrics["loss"], epsilon=float(run["codebook-loss-epsilon"]))
    else:
        raise ValueError(f"protection must be 'laplace' or 'codebook', got {run['protection']!r}")
    # One pool for both: who has trained is not evaluated, and nobody is asked again. (A share that
    # a rounding puts just below a whole number of clients would lose one.)
    pool = ClientPool(answers_per_client=1)
    share = (1 + 1e-9) / (2 * int(run["num-server-rounds"]))
    at_a_time = min(config.unsupervised.cluster_client_num, int(run["evaluated-each-round"]))
    return ProtectedEvalStrategy(
        from_file.training(answers_per_client=pool, fraction_train=share),
        mechanism,
        health=config.encrypt.health(),
        score=config.unsupervised.eval_type,
        metrics=metrics,
        cluster_client_num=at_a_time,
        answers_per_client=pool,
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train and evaluate in private, keep each round's model, and report."""
    run = context.run_config
    folder, rounds = Path(str(run["output-dir"])), int(run["num-server-rounds"])
    images = data.of_run(run)
    net = model.initial(images.public, float(run["sharpness"]), int(run["seed"]))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """On the server's own held-out images, with labels: not what a real server has."""
        net.load_state_dict(arrays.to_torch_state_dict())
        model.save(net, folder / "models" / f"{server_round}.npz")
        clusters = model.predict(net, images.held_out).argmax(axis=1)
        accuracy = model.clustering_accuracy(clusters, images.labels)
        print(f"round {server_round}/{rounds}: clustering accuracy {accuracy:.3f}", flush=True)
        return MetricRecord({"clustering-accuracy": accuracy})

    strategy = make_strategy(context, images.public, net)
    result = strategy.start(
        grid, ArrayRecord(net.state_dict()), num_rounds=rounds, evaluate_fn=evaluate
    )
    report.publish(result, dict(run), strategy.privacy_spent(), folder)

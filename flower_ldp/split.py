r"""Split (vertical) learning with torch: the cut layer, the server's half, its loss, and a party.

Needs the extra ``torch``. The cut layer sends randomized bits [h > 0] forward. Backward it is the
straight-through estimator (Hubara et al. 2016): the gradient passes where :math:`|h| \le 1` and is
0 elsewhere. A party keeps ``bottom.pt`` in its folder, and the file of the step before.
"""

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_ldp.clients.split_embedding import Party
from flower_ldp.isolation import IsolatedPasses, alone
from flower_ldp.labels.losses import forward_loss
from flower_ldp.mechanisms.embeddings import BottomModelClaim, UnaryEncoding
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import KaryResponse
from flower_ldp.parameter_bounds import check_in
from flower_ldp.safe_files import replacing
from flower_ldp.strategies.split_tops import Rows, Top
from flower_ldp.wire.record_ids import RecordTables

__all__ = ["EmbeddingDP", "ForwardCorrected", "TorchParty", "TorchTop", "weights_digest"]

#: Trains a bottom: module, features as numpy has them, labels, loss.
Train = Callable[[nn.Module, NDArray[Any], Tensor, "ForwardCorrected"], None]

_FILE, _PREVIOUS = "bottom.pt", "bottom.previous.pt"


class EmbeddingDP(nn.Module):
    """Randomized one-bit embeddings with a straight-through gradient.

    Without parameters or buffers. Noise is drawn in evaluation mode too, with a new key from the
    operating system at every call; ``torch.manual_seed`` has no effect on it.

    Parameters
    ----------
    eps : float or None
        The published label, in [0, inf): epsilon of a one-hot row. A release of m free bits costs
        ``m * eps / 2``. None quantizes only; 0 sends fair coins; above 100 the noise is that of
        100, with a warning.
    one_hot : bool
        Whether each record has exactly one positive entry; any other is replaced by a uniform
        place.

    Raises
    ------
    ValueError
        If ``eps`` is outside its interval.

    Examples
    --------
    >>> import torch
    >>> EmbeddingDP()(torch.tensor([0.3, -0.2, 0.0]))
    tensor([1., 0., 0.])
    """

    def __init__(self, eps: float | None = None, *, one_hot: bool = False) -> None:
        super().__init__()
        self.eps = UnaryEncoding.from_published(eps, 1, one_hot).epsilon
        self.one_hot = one_hot

    def mechanism(self, bits: int) -> UnaryEncoding:
        """Return the randomizer of embeddings of that length."""
        return UnaryEncoding(self.eps, bits, self.one_hot)

    def forward(self, h: Tensor) -> Tensor:
        """Return randomized bits as 0.0 and 1.0; NaN becomes a fair bit.

        Parameters
        ----------
        h : Tensor of real numbers, shape (m,) or (n, m)

        Returns
        -------
        Tensor
            Shape, dtype and device of ``h``.

        Raises
        ------
        ValueError
            If the shape is another.
        TypeError
            If ``h`` is complex.
        """
        if h.is_complex():
            raise TypeError(f"h must be of real numbers, got {h.dtype}")
        if h.ndim not in (1, 2) or h.shape[-1] == 0:
            raise ValueError(f"h must have shape (m,) or (n, m), got {tuple(h.shape)}")
        real = h if h.is_floating_point() else h.float()
        found: Tensor = _StraightThrough.apply(real, self.mechanism(h.shape[-1]))  # type: ignore[no-untyped-call]
        return found.to(h.dtype)

    def extra_repr(self) -> str:
        """Show the label and whether rows are one-hot."""
        return f"eps={self.eps}" + (", one_hot=True" if self.one_hot else "")


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, mechanism: UnaryEncoding) -> Tensor:
        ctx.save_for_backward(h.detach().abs() <= 1)
        # numpy has no bfloat16; every float that torch has is exact in float64
        values = h.detach().to("cpu", torch.float64).numpy()
        bits = mechanism.randomize(values, RandomSource.from_os())
        return torch.from_numpy(bits).to(device=h.device, dtype=h.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        (open_,) = ctx.saved_tensors
        return gradient * open_, None


class TorchTop(Top):
    """A top model over the parties' embeddings, concatenated in the order of names.

    Parameters
    ----------
    module : Module
        Maps them to scores of shape (records, classes), or (records, classes, labels of a record).
    optimizer : callable
        Makes the optimizer from the parameters.
    loss : callable
        Of scores and labels, mean over records; :class:`ForwardCorrected` for randomized labels.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.Adam,
        loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
    ) -> None:
        self.module = module
        self._optimizer = optimizer(module.parameters())
        self._loss = loss
        #: Name of the last step, which the strategy sets; a part of what is saved.
        self.at: str | None = ""

    def step(
        self, embeddings: Sequence[Rows], labels: NDArray[np.int64]
    ) -> tuple[float, list[Rows]]:
        """Train on one block; return the loss before, and each party's gradient."""
        inputs = [torch.tensor(rows, requires_grad=True) for rows in embeddings]
        self.module.train()
        loss = self._loss(self.module(torch.cat(inputs, 1)), torch.from_numpy(labels))
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss is {value}: lower the learning rate")
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        found = [torch.zeros_like(rows) if rows.grad is None else rows.grad for rows in inputs]
        return value, [gradient.numpy() for gradient in found]

    def predict(self, embeddings: Sequence[Rows]) -> NDArray[np.int64]:
        """Return the class with the largest score, for each label of each record."""
        return np.asarray(self._scores(embeddings).argmax(1).numpy(), dtype=np.int64)

    def loss(self, embeddings: Sequence[Rows], labels: NDArray[np.int64]) -> float:
        """Return the mean loss over all labels, in evaluation mode."""
        with torch.no_grad():
            return float(self._loss(self._scores(embeddings), torch.from_numpy(labels)))

    def _scores(self, embeddings: Sequence[Rows]) -> Tensor:
        self.module.eval()
        with torch.no_grad():
            scores: Tensor = self.module(torch.from_numpy(np.concatenate(embeddings, axis=1)))
        return scores

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write module, optimizer and step to a file, atomically."""
        module, optimizer = self.module.state_dict(), self._optimizer.state_dict()
        state = {"module": module, "optimizer": optimizer, "at": self.at}
        with replacing(Path(path)) as file:
            torch.save(state, file)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read what :meth:`save` wrote."""
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.at = state["at"]


class ForwardCorrected:
    """Cross-entropy for labels that went through k-ary randomized response.

    Parameters
    ----------
    response : KaryResponse
        The channel.
    """

    def __init__(self, response: KaryResponse) -> None:
        self._keep = response.keep_probability
        self._other = (1.0 - self._keep) / (response.categories - 1)

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss."""
        likelihood = torch.full_like(scores, self._other).scatter_(1, labels[:, None], self._keep)
        return forward_loss(scores, likelihood)


class TorchParty(Party):
    """Holds columns of the records, and a bottom model over them.

    Parameters
    ----------
    name : str
        Public, and different for each party of a run.
    tables : RecordTables
        The ids.
    features : callable
        Returns the features of a table, one row per id in order.
    bottom : Module
        Newly made; weights in the folder replace its own. It must be deterministic (no dropout).
    claim : BottomModelClaim
        How its weights were trained. A ``conditional`` bottom learns from the server's gradients;
        any other is frozen.
    folder : path-like
        The party's own; made if missing.
    optimizer : callable, optional
        Makes the optimizer for the server's gradients.
    train : callable, optional
        ``train(bottom, features, labels, loss)`` trains the bottom on randomized labels, with the
        loss that corrects for it. Under a ``dp`` claim it must have the claimed epsilon and delta.
    save_every : int
        Steps between writes. More than 1 only where one object handles all messages; call
        :meth:`save` at the end.

    Raises
    ------
    ValueError
        If the name is empty, or the folder holds a bottom of another shape or claim.
    """

    def __init__(
        self,
        name: str,
        tables: RecordTables,
        features: Callable[[str], NDArray[Any]],
        bottom: nn.Module,
        claim: BottomModelClaim,
        folder: str | os.PathLike[str],
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.Adam,
        train: Train | None = None,
        save_every: int = 1,
    ) -> None:
        if not name:
            raise ValueError("name must not be empty")
        check_in("[1, inf)", "save_every", save_every, int)
        self.name, self.tables, self.claim = name, tables, claim
        self.bottom = bottom.eval()
        self._features, self._train = features, train
        self._loaded: dict[str, NDArray[Any]] = {}
        self._path, self._previous = Path(folder) / _FILE, Path(folder) / _PREVIOUS
        self._optimizer = optimizer(bottom.parameters()) if claim.kind == "conditional" else None
        self._save_every, self._unsaved = save_every, 0
        self.step = self._saved = self._prepared = self._failed = self._way = ""
        if self._path.exists() or self._previous.exists():
            # Only the previous one: killed while the files were replaced, so before the answer.
            self._load(self._path if self._path.exists() else self._previous)
            self._saved = self.step
        else:
            self.save()

    def earlier(self) -> tuple[str, ...]:
        """Return the earlier steps that files hold."""
        files = (path for path in (self._path, self._previous) if path.exists())
        found = dict.fromkeys(str(_read(path)["last"]) for path in files)
        return tuple(step for step in found if step != self.step)

    def rewind(self, step: str) -> None:
        """Restore the bottom of a step; ValueError without its file."""
        if step == self.step:
            return
        for path in (self._path, self._previous):
            if path.exists() and _read(path)["last"] == step:
                self._load(path)
                self.save()
                return
        raise ValueError(f"{self._path.parent} has no bottom of step {step or 'none'}")

    def digest(self) -> str:
        """Return the SHA-256 of the bottom's weights.

        It changes with each step and each failed training on labels, even if the weights stay:
        equal reports must not show that nothing was learned.
        """
        weights = weights_digest(self.bottom.state_dict())
        if not (self._failed or self._way):
            return weights
        return hashlib.sha256(f"{weights}|{self._failed}|{self._way}".encode()).hexdigest()

    def prepare(self, table: str, labels: NDArray[np.int64], response: KaryResponse) -> None:
        """Train the bottom on randomized labels, unless it was trained on the same before.

        Raises
        ------
        ValueError
            If the bottom is public, has no training, or under a ``dp`` claim was trained on other
            labels before, which would cost its epsilon again.
        """
        if self.claim.kind == "public" or self._train is None:
            raise ValueError("this bottom takes no labels: it is public, or has no training")
        question = f"{table}|{response.epsilon!r}|{response.categories}|".encode()
        digest = hashlib.sha256(question + labels.astype("<i8").tobytes()).hexdigest()
        if digest == self._prepared:
            return
        if self._prepared and self.claim.kind == "dp":
            raise ValueError("a bottom is trained once at its epsilon; use another folder")
        before = deepcopy(self.bottom.state_dict())
        self.bottom.train()
        try:
            features, noisy = self._table(table), torch.from_numpy(labels)
            self._train(self.bottom, features, noisy, ForwardCorrected(response))
        except BaseException:
            self.bottom.load_state_dict(before)  # half a training would be continued by the next
            self._failed = digest
            raise
        else:
            self._prepared, self._failed = digest, ""
        finally:
            self.bottom.eval()
            self.save()

    def embed(self, table: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the bottom's outputs for these rows, each computed alone."""
        found = []
        with IsolatedPasses(self.bottom) as passes:
            for row in rows:
                passes.begin()
                record = torch.from_numpy(np.asarray(self._table(table)[row], dtype=np.float32))
                output = self.bottom(alone(record)).detach()
                if output.ndim != 2:
                    shape = tuple(output.shape)
                    raise ValueError(f"the bottom must return rows of numbers, got {shape}")
                found.append(output.to(torch.float32).numpy())
        return np.concatenate(found)

    def learn(
        self, table: str, rows: NDArray[np.int64], gradient: NDArray[np.float32], step: str
    ) -> None:
        """Train the bottom: straight through the quantizer, clipped to ``|h| <= 1``.

        Raises
        ------
        ValueError
            If the bottom is frozen, or the gradient has another shape than the embeddings.
        """
        if self._optimizer is None:
            raise ValueError(f"the bottom is frozen: its claim is {self.claim.kind!r}")
        last = self.step
        if step == last:
            return
        h = self.bottom(torch.from_numpy(np.asarray(self._table(table)[rows], dtype=np.float32)))
        if h.shape != gradient.shape:
            raise ValueError(f"gradient must have shape {tuple(h.shape)}, got {gradient.shape}")
        self._optimizer.zero_grad()
        h.backward(torch.tensor(gradient).to(h) * (h.detach().abs() <= 1))
        if self.step != last:  # skipped in the meantime, by another thread
            return
        self._optimizer.step()
        self.skip(step)

    def skip(self, step: str) -> None:
        """Advance to the step without training."""
        self.step = step
        self._way = hashlib.sha256(f"{self._way}|{step}".encode()).hexdigest()
        self._unsaved += 1
        if self._unsaved >= self._save_every:
            self.save()

    def save(self) -> None:
        """Write the bottom to the folder; after a step the old file stays beside it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "kind": self.claim.kind,
            "bottom": self.bottom.state_dict(),
            "optimizer": self._optimizer and self._optimizer.state_dict(),
            "last": self.step,
            "prepared": self._prepared,
            "failed": self._failed,
            "way": self._way,
        }
        moved = self.step != self._saved and self._path.exists()
        with replacing(self._path, keep=self._previous if moved else None) as file:
            torch.save(state, file)
        self._saved, self._unsaved = self.step, 0

    def _load(self, path: Path) -> None:
        state = _read(path)
        if state["kind"] != self.claim.kind:
            told = f"{path} holds a bottom of claim {state['kind']!r}, not {self.claim.kind!r}"
            raise ValueError(f"{told}, which cannot be declared anew: use another folder")
        try:
            self.bottom.load_state_dict(state["bottom"])
            if self._optimizer is not None:
                self._optimizer.load_state_dict(state["optimizer"])
        except RuntimeError as error:
            raise ValueError(f"{path} holds another bottom: {error}") from error
        self.step, self._prepared = state["last"], state["prepared"]
        self._failed, self._way = state.get("failed", ""), state.get("way", "")

    def _table(self, table: str) -> NDArray[Any]:
        if table not in self._loaded:
            found = self._features(table)
            if len(found) != len(self.tables.tables[table]):
                raise ValueError(f"features of {table!r}: one row for each id, got {len(found)}")
            self._loaded[table] = found
        return self._loaded[table]


def _read(path: Path) -> dict[str, Any]:
    return dict(torch.load(path, map_location="cpu", weights_only=True))


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a state dict, hexadecimal."""
    found = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        found.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()

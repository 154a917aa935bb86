"""Client side: the gate and the releases that it lets out."""

from collections.abc import Mapping
from types import MappingProxyType

from flwr.app import MessageType

from flower_ldp.clients.auc import AUCRelease
from flower_ldp.clients.authorizer import OwnerAuthorizer
from flower_ldp.clients.counts import CountsRelease
from flower_ldp.clients.dpsgd import AccuracyRelease, DPSGDRelease
from flower_ldp.clients.histograms import private_histograms
from flower_ldp.clients.labels import PrivateDataset, PrivateLabels, private_dataset, private_labels
from flower_ldp.clients.ldp_mod import LdpMod
from flower_ldp.clients.legacy import legacy_client_mod
from flower_ldp.clients.permit import Authorizer, Permit, ReleaseRequest, ReplyTiming
from flower_ldp.clients.rehearsal import Rehearsal
from flower_ldp.clients.release import KeptRelease, OpenRelease, Release
from flower_ldp.clients.reports import (
    CodewordRelease,
    ExtensionRelease,
    GaussianRelease,
    LaplaceEvalRelease,
    ProtectedEvalRelease,
    SignDSRelease,
    UpdateRelease,
)
from flower_ldp.clients.scaling import private_means
from flower_ldp.clients.split_app import split_client_app
from flower_ldp.clients.split_embedding import EmbeddingOnceRelease, EmbeddingRelease, Party
from flower_ldp.clients.unprotected import UnprotectedMod
from flower_ldp.labels.stages import LabelStages, RandomizedLabels

__all__ = [
    "RELEASES",
    "AUCRelease",
    "AccuracyRelease",
    "Authorizer",
    "CodewordRelease",
    "CountsRelease",
    "DPSGDRelease",
    "EmbeddingOnceRelease",
    "EmbeddingRelease",
    "ExtensionRelease",
    "GaussianRelease",
    "KeptRelease",
    "LabelStages",
    "LaplaceEvalRelease",
    "LdpMod",
    "OpenRelease",
    "OwnerAuthorizer",
    "Party",
    "Permit",
    "PrivateDataset",
    "PrivateLabels",
    "ProtectedEvalRelease",
    "RandomizedLabels",
    "Rehearsal",
    "Release",
    "ReleaseRequest",
    "ReplyTiming",
    "SignDSRelease",
    "UnprotectedMod",
    "UpdateRelease",
    "legacy_client_mod",
    "private_dataset",
    "private_histograms",
    "private_labels",
    "private_means",
    "split_client_app",
]

#: How replies about updates, rows and counts are privatized, by type of message and the mechanism
#: that the proposal names. Those of embeddings need a party (:class:`EmbeddingRelease`), and a
#: model by DP-SGD the package's own training in the app (:class:`DPSGDRelease`).
RELEASES: Mapping[str, Release] = MappingProxyType(
    {
        MessageType.TRAIN: UpdateRelease(),
        MessageType.EVALUATE: ProtectedEvalRelease(),
        MessageType.QUERY: CountsRelease(),
    }
)

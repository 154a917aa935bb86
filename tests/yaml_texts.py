"""Policies and configurations from texts; the package reads files."""

from __future__ import annotations

from flower_ldp.config import LabelDPConfig, SplitConfig, TrainConfig
from flower_ldp.config.encrypt import FORMAT
from flower_ldp.config.labels import LABEL_FORMAT, SPLIT_FORMAT
from flower_ldp.policy import Policy, files


def parse_config(text: str, source: str = "<text>") -> TrainConfig:
    return FORMAT.parse(text, source=source)


def parse_label_config(text: str, source: str = "<text>") -> LabelDPConfig:
    return LABEL_FORMAT.parse(text, source=source).label_dp


def parse_split_config(text: str, source: str = "<text>") -> SplitConfig:
    return SPLIT_FORMAT.parse(text, source=source)


def parse_policy(text: str, source: str = "<text>") -> Policy:
    return files.FORMAT.parse(text, source=source)

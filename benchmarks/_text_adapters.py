"""Arithmetic of adapters of GPT-2 on WikiText-2: what a private training costs, and its signal."""

from __future__ import annotations

import time
from typing import Any

import torch
from _runs import Run
from _vision_transformer import ALPHA, RANK, size
from peft import LoraConfig, get_peft_model

from flower_ldp.accounting.dpsgd import noise_multiplier
from flower_ldp.mechanisms import TrainingOutlook, TrainingPlan
from flower_ldp.training import hugging_face
from flower_ldp.training.gradients import RowModel
from flower_ldp.training.rows import Rows

#: Tokens of a window, which is the unit, and of WikiText-2's training text.
WINDOW, TOKENS = 128, 2_088_628
_SITES, _ROUNDS, _STEPS, _RATE = 5, 5, 4, 0.02
_EPSILON, _DELTA = 8.0, 1e-5
_PASSES = 5


def arithmetic() -> Run:
    """Measure passes of a model of GPT-2's shape, which has random weights; return a run's sums."""
    from transformers import GPT2Config, GPT2LMHeadModel

    layers = {"target_modules": ["c_attn"], "fan_in_fan_out": True}
    base: Any = GPT2LMHeadModel(GPT2Config())
    model: Any = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, **layers))
    classes = base.config.vocab_size
    window = torch.randint(classes, (WINDOW,))
    row = {"input_ids": window, "labels": window}
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    asked = RowModel(model, hugging_face, Rows([row], row, strict=True), {}, list(weights))
    asked.check(weights)
    seconds = []
    with asked.passes() as passes:
        for _ in range(_PASSES):
            began = time.process_time()
            asked.row(passes, weights, 0)
            seconds.append(time.process_time() - began)
    steps, windows = _ROUNDS * _STEPS, TOKENS // WINDOW // _SITES
    noise = noise_multiplier(_EPSILON, _DELTA, sample_rate=_RATE, steps=steps)
    plan = TrainingPlan(_ROUNDS, _STEPS, _RATE, noise, _EPSILON, _DELTA)
    outlook = TrainingOutlook(plan, windows, _SITES, classes)
    per_agreement = TrainingOutlook(plan, windows, _SITES, agreement=1.0).ratios[0]
    return {
        "weights": size(model),
        "learning": size(model, learning=True),
        "windows_a_site": windows,
        "windows_a_step": round(plan.mean_size(windows), 1),
        "noise": round(noise, 4),
        "signal_to_noise_typical": list(outlook.ratios),
        "agreement_for_a_ratio_of_1": 1 / per_agreement,
        "seconds_a_window": min(seconds),
        "hours_a_site": min(seconds) * steps * plan.mean_size(windows) / 3600,
    }

# SPDX-License-Identifier: Apache-2.0
"""Domains of the constants of experiments, by name, and their check."""

from __future__ import annotations

from typing import Any

from praxis import value_domains

Domain = value_domains.Domain

_interval = value_domains.interval
_or_none = value_domains.OrNone
_OneOf = value_domains.OneOf

_COUNT = _interval(ge=1)
_RATE = _interval(ge=0.0, lt=1.0)
_NUMBER = value_domains.Interval()
_RATIO = _interval(ge=0.0, le=1.0)
_NOT_NEGATIVE = value_domains.Interval(ge=0.0)
_STEPS = value_domains.Interval(ge=0)
_MESH = value_domains.SequenceOf(
  _COUNT, 'a list of axis sizes, integers at least 1'
)

# By the names that the experiments of Pax and paxml use.
DOMAINS: dict[str, Domain] = {
  **dict.fromkeys(
    (
      'BATCH_SIZE', 'EVAL_BATCH_SIZE', 'TRAIN_BATCH_SIZE', 'MAX_SEQ_LEN',
      'DECODE_SEQ_LEN', 'VOCAB_SIZE', 'NUM_CLASSES', 'NUM_LAYERS', 'NUM_LAYER',
      'HIDDEN_DIM', 'INPUT_DIM', 'OUTPUT_DIM',
      'CIRCULAR_REPEAT', 'CHECKPOINT_EVERY_N_STEPS', 'SAVE_INTERVAL_STEPS',
      'SUMMARY_INTERVAL_STEPS', 'IMAGE_SIZE', 'NUM_TRAIN_EXAMPLES',
      'TRAINABLE_PE_MAX_SEQ_LEN', 'DECODE_BATCH_SIZE', 'SOURCE_LEN',
      'TARGET_LEN', 'MAX_PROMPT_LEN', 'ROLLOUT_BATCHES', 'ROLLOUT_EPOCHS',
    ),
    _COUNT,
  ),
  # None where they follow from other constants.
  **dict.fromkeys(
    (
      'MODEL_DIMS', 'HIDDEN_DIMS', 'NUM_HEADS', 'DIMS_PER_HEAD',
      'NUM_PIECES', 'NUM_STAGES', 'MICROBATCH_SIZE', 'NUM_MICROBATCHES',
      'EVAL_MAX_BATCHES', 'LR_DECAY_STEPS',
      'CHECKPOINT_MAX_TO_KEEP',
      'CHECKPOINT_SAVE_MAX_TO_KEEP', 'SAVE_MAX_TO_KEEP',
    ),
    _or_none(_COUNT),
  ),
  **dict.fromkeys(
    ('EVAL_INTERVAL_STEPS', 'DECODE_INTERVAL_STEPS'),
    _or_none(_interval(ge=0)),
  ),
  **dict.fromkeys(
    ('NUM_TRAIN_STEPS', 'TRAIN_STEPS', 'MAX_STEPS', 'WARMUP_STEPS'), _STEPS
  ),
  **dict.fromkeys(
    ('ICI_MESH_SHAPE', 'DCN_MESH_SHAPE', 'MESH_SHAPE'), _or_none(_MESH)
  ),
  **dict.fromkeys(('DROPOUT_PROB', 'INPUT_DROPOUT_PROB'), _RATE),
  **dict.fromkeys(('ADAM_BETA1', 'ADAM_BETA2'), _or_none(_RATE)),
  **dict.fromkeys(
    ('LEARNING_RATE', 'ADAM_CLIP_THRESHOLD'), _or_none(_NUMBER)
  ),
  **dict.fromkeys(
    (
      'WEIGHT_DECAY', 'CLIP_GRADIENT_NORM_TO_VALUE', 'ADAM_EPSILON',
      'ADAM_EPSILON_ROOT',
    ),
    _or_none(_NOT_NEGATIVE),
  ),
  **dict.fromkeys(
    ('LR_MIN_RATIO', 'LR_COS_MIN_RATIO', 'LR_LRED_MIN_RATIO'), _RATIO
  ),
  'LR_SCHEDULE': _OneOf(('cosine', 'linear', 'constant')),
  # A fraction shares a row among devices.
  'PERCORE_BATCH_SIZE': value_domains.Interval(gt=0),
  'PERCORE_EVAL_BATCH_SIZE': _or_none(value_domains.Interval(gt=0)),
  'HELD_OUT_PERCENT': _interval(ge=0.0, lt=100.0),
  'DISTILLATION_WEIGHT': _RATIO,
  'DISTILLATION_TEMPERATURE': _interval(gt=0.0),
  'DPO_BETA': _interval(gt=0.0),
  'LORA_RANK': _interval(ge=0),
  'LORA_ALPHA': _interval(gt=0.0),
  'LORA_DROPOUT': _interval(ge=0.0, lt=1.0),
  # Of a group of samples.
  'NUM_SAMPLES': _interval(ge=2),
  'GRPO_BETA': _interval(ge=0.0),
  'GRPO_CLIP_LOW': _interval(ge=0.0, le=1.0),
  'GRPO_CLIP_HIGH': _interval(ge=0.0),
  'GRPO_PENALIZED_TOKENS': _interval(ge=0),
  'GRPO_LOSS_MEAN': _OneOf(('tokens', 'samples', 'max_length')),
  'GRPO_RATIO_LEVEL': _OneOf(('token', 'sequence')),
  'ROLLOUT_TEMPERATURE': _interval(gt=0.0),
  'ROLLOUT_TOP_P': _interval(gt=0.0, le=1.0),
  'ROLLOUT_TOP_K': _interval(ge=0),
}  # fmt: skip


def check(experiment: Any) -> None:
  """Checks the constants of an experiment whose names are in `DOMAINS`.

  A constant that some class defines outside of the domain has another meaning
  there, and is not checked. Neither is a property, which may need the devices.

  Raises:
    ValueError: a constant is not in its domain.
  """
  cls = type(experiment)
  for name, domain in DOMAINS.items():
    # From the class that introduces the constant to `cls`.
    values = [vars(b)[name] for b in reversed(cls.__mro__) if name in vars(b)]
    if not values or not domain.contains(values[0]):
      continue
    value = values[-1]
    if not (domain.contains(value) or isinstance(value, property)):
      valid = [v for v in values if v is not None and domain.contains(v)]
      example = valid[-1] if valid else domain.example(value)
      setting = value_domains.setting(name, example)
      hint = '' if example is None else f'; e.g. --set {setting}'
      raise ValueError(
        f'{name} of {cls.__name__} must be {domain.text}, got {value!r}{hint}'
      )

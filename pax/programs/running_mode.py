# SPDX-License-Identifier: Apache-2.0
"""The kinds of metrics that an early stopping function receives."""

from __future__ import annotations

import enum


class RunningMode(enum.Flag):
  """Sources of metrics: any of training, evaluation and decoding."""

  UNKNOWN = 0
  TRAIN = enum.auto()
  EVAL = enum.auto()
  DECODE = enum.auto()

  @classmethod
  def detect(
    cls,
    has_train_metrics: bool,
    has_eval_metrics: bool,
    has_decode_metrics: bool,
  ) -> RunningMode:
    """Returns the mode with these kinds of metrics.

    Args:
      has_train_metrics: Whether there are metrics of training.
      has_eval_metrics: Whether there are metrics of evaluation.
      has_decode_metrics: Whether there are metrics of decoding.
    """
    mode = cls.UNKNOWN
    for kind, present in (
      (cls.TRAIN, has_train_metrics),
      (cls.EVAL, has_eval_metrics),
      (cls.DECODE, has_decode_metrics),
    ):
      if present:
        mode |= kind
    return mode

  @property
  def has_train(self) -> bool:
    """Whether there are metrics of training."""
    return bool(self & RunningMode.TRAIN)

  @property
  def has_eval(self) -> bool:
    """Whether there are metrics of evaluation."""
    return bool(self & RunningMode.EVAL)

  @property
  def has_decode(self) -> bool:
    """Whether there are metrics of decoding."""
    return bool(self & RunningMode.DECODE)

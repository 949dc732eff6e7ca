# SPDX-License-Identifier: Apache-2.0
"""What a job does, as early stopping functions are told."""

from __future__ import annotations

import enum


class RunningMode(enum.Flag):
  """What metrics come from: any of training, evaluation and decoding."""

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
    """Returns the mode that has these kinds of metrics."""
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

# SPDX-License-Identifier: Apache-2.0
"""Schedules of learning rates and other values; this module re-exports."""

from __future__ import annotations

from praxis.alias_names import module_getattr
from praxis.schedules.base_schedule import BaseSchedule
from praxis.schedules.elementary import (
  Constant,
  ContinuousSchedule,
  Cosine,
  DelayedCosine,
  Exponential,
  Linear,
  Polynomial,
  SqrtDecay,
  Transformer,
)
from praxis.schedules.piecewise import (
  CycleSchedule,
  PiecewiseConstant,
  PiecewiseSchedule,
)
from praxis.schedules.rampup import (
  LinearRampupCosineDecay,
  LinearRampupExponentialDecay,
  LinearRampupPiecewiseConstant,
  LinearRampupPolynomialDecay,
  LinearRampupSqrtDecay,
)

__getattr__ = module_getattr(__name__)

__all__ = [
  'BaseSchedule',
  'Constant',
  'ContinuousSchedule',
  'Cosine',
  'CycleSchedule',
  'DelayedCosine',
  'Exponential',
  'Linear',
  'LinearRampupCosineDecay',
  'LinearRampupExponentialDecay',
  'LinearRampupPiecewiseConstant',
  'LinearRampupPolynomialDecay',
  'LinearRampupSqrtDecay',
  'PiecewiseConstant',
  'PiecewiseSchedule',
  'Polynomial',
  'SqrtDecay',
  'Transformer',
]

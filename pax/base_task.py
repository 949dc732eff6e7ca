# SPDX-License-Identifier: Apache-2.0
"""What an experiment runs."""

from __future__ import annotations

from praxis import base_hyperparams


class BaseTask(base_hyperparams.FiddleBaseParameterizable):
  """What an experiment runs."""

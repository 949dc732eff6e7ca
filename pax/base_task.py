# SPDX-License-Identifier: Apache-2.0
"""The base class of tasks."""

from __future__ import annotations

from praxis import base_hyperparams


class BaseTask(base_hyperparams.FiddleBaseParameterizable):
  """A model with everything needed to run it; see `tasks_lib.SingleTask`."""

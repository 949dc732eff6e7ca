# SPDX-License-Identifier: Apache-2.0
"""Rules that samples are ended for."""

from __future__ import annotations

import abc

from jaxtyping import Array, Bool

from praxis import base_hyperparams
from praxis.nested_map import NestedMap


class BaseSampleTerminationConstraint(
  base_hyperparams.FiddleBaseParameterizable, metaclass=abc.ABCMeta
):
  """Says which samples end before they would by themselves.

  It is asked after every step of batches with enforce_sample_constraints.
  """

  @abc.abstractmethod
  def __call__(
    self,
    enforce_sample_constraints: Array | None,
    decode_loop_state: NestedMap,
  ) -> Bool[Array, 'R']:
    """Returns which rows are done, those that are already among them.

    Args:
      enforce_sample_constraints: the batch's field of that name.
      decode_loop_state: what the loop knows; see `sampling`.
    """

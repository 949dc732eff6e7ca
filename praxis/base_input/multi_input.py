# SPDX-License-Identifier: Apache-2.0
"""An input whose batches hold a batch of each of several inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np

from praxis import base_hyperparams, pax_fiddle, py_utils, pytypes
from praxis.base_input import data_fingerprints
from praxis.base_input.input_pipeline import BaseInput, State, Vocabulary

NestedMap = py_utils.NestedMap


class MultiInput(BaseInput):
  """Several inputs read in parallel: a batch has one sub-batch per input.

  The inputs may have different batch sizes B_i. Arrays have the shape
  [B, B_i / B, ...], where B is the greatest common divisor of all B_i: the
  first dimension is the same for all, and can be split over devices.
  """

  _VALIDATE_BATCH_SIZE_NOT_NONE = False

  # The inputs by name.
  input_to_params: dict[str, pax_fiddle.Config[BaseInput]] | None = (
    pax_fiddle.template_field(None)
  )
  # The input that `ids_to_strings` uses by default.
  default_input: str | None = None

  def __post_init__(self):
    inputs = self._named_inputs(self)
    if (self.default_input or '') not in ('', *inputs):
      raise ValueError(
        f'default_input must be one of {sorted(inputs)}, got '
        f'{self.default_input!r}'
      )
    if self.reset_for_eval and len(inputs) > 1:
      raise ValueError(
        'MultiInput supports reset_for_eval with one input only, got'
        f' {sorted(inputs)}'
      )
    super().__post_init__()
    self._outer_batch_size = self.get_batch_size(self)
    self._inputs = {
      name: self._child_params(name, params).Instantiate()
      for name, params in inputs.items()
    }

  @classmethod
  def get_batch_size(
    cls,
    params: pax_fiddle.Config[Self] | base_hyperparams.HParamsView | Self,
  ) -> int:
    """Returns the greatest common divisor of the inputs' batch sizes.

    Raises:
      ValueError: batch_size of the MultiInput itself is set, or there is no
        input.
    """
    if params.batch_size is not None:
      raise ValueError(
        'self.batch_size of MultiInput must stay None, got'
        f' {params.batch_size}; set it in input_to_params'
      )
    inputs = cls._named_inputs(params)
    sizes = [p.cls.get_batch_size(p) for p in inputs.values()]
    return int(np.gcd.reduce(sizes))

  @staticmethod
  def _named_inputs(params: Any) -> dict[str, pax_fiddle.Config[BaseInput]]:
    """Returns `input_to_params` of a MultiInput or its Config, not empty."""
    if not params.input_to_params:
      raise ValueError(
        'input_to_params of MultiInput must name at least one input, got '
        f'{params.input_to_params}'
      )
    return params.input_to_params

  def get_next(self) -> NestedMap:
    batches = {n: i.get_next() for n, i in self._inputs.items()}
    return jax.tree.map(
      lambda x: py_utils.reshape_with_outer_batch_size(
        x, self._outer_batch_size
      ),
      NestedMap(batches),
    )

  def get_child(self, input_name: str) -> BaseInput:
    return self._inputs[input_name]

  def reset(self) -> None:
    super().reset()
    for child in self._inputs.values():
      child.reset()

  def ids_to_strings(
    self,
    ids: pytypes.NpTensor,
    lengths: pytypes.NpTensor,
    key: str | None = None,
    input_name: str | None = None,
  ) -> Sequence[str]:
    name = input_name or self.default_input
    if name not in self._inputs:
      raise ValueError(
        f'input_name must be one of {sorted(self._inputs)}, got {name!r}; '
        'set default_input'
      )
    return self._inputs[name].ids_to_strings(ids, lengths, key)

  def vocabularies(self) -> Mapping[str, Vocabulary]:
    return {
      f'{name}.{feature}': vocabulary
      for name, child in self._inputs.items()
      for feature, vocabulary in child.vocabularies().items()
    }

  def vocabulary_sizes(self) -> Mapping[str, int]:
    return {
      f'{name}.{feature}': size
      for name, child in self._inputs.items()
      for feature, size in child.vocabulary_sizes().items()
    }

  def data_fingerprint_before(
    self, state: State
  ) -> data_fingerprints.Fingerprint:
    # An input that is not in the state is another error, of `set_state`.
    return {'inputs': sorted(self._inputs.keys() & state.keys())}

  def _child_params(
    self, name: str, params: pax_fiddle.Config[BaseInput]
  ) -> pax_fiddle.Config[BaseInput]:
    return params.clone().set(
      name=f'{self.name}_{name}',
      num_infeed_hosts=self.num_infeed_hosts,
      infeed_host_index=self.infeed_host_index,
      is_training=self.is_training,
      reset_for_eval=self.reset_for_eval,
      eval_loop_num_batches=self.eval_loop_num_batches,
    )

  @property
  def has_large_state(self) -> bool:
    return any(child.has_large_state for child in self._inputs.values())

  def _get_state_internal(self) -> State:
    return {name: i.get_state() for name, i in self._inputs.items()}

  def _set_state_internal(self, state: State) -> None:
    if missing := sorted(self._inputs.keys() - state.keys()):
      raise ValueError(
        f'input_to_params of {self.name!r} must have the names of its saved'
        f' state, {sorted(state)}, got {sorted(self._inputs)}: {missing} have'
        ' no state; name them as before, or take the checkpoint as the start'
        ' of a new job (--init_from)'
      )
    for name, child in self._inputs.items():
      child.set_state(state[name])

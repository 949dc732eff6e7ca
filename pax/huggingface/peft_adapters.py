# SPDX-License-Identifier: Apache-2.0
"""Low-rank updates of a checkpoint as a folder of PEFT.

PEFT adds lora_alpha / r * lora_B lora_A to the weight [outputs, inputs] of a
module. A module has one update: those of projections that are one tensor, such
as queries, keys and values, become one of the sum of their ranks.
"""

from __future__ import annotations

import collections
import json
import math
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pax.huggingface import families, safetensors
from pax.huggingface.low_rank_leaves import LowRankFactors
from pax.huggingface.weight_layouts import WeightLayout

_WEIGHTS_FILE = 'adapter_model.safetensors'
_CONFIG_FILE = 'adapter_config.json'
_PREFIX = 'base_model.model.'
_SUFFIX = '.weight'


class ModuleUpdate(NamedTuple):
  """The update of a module, alpha / r * b a."""

  # [r, inputs] and [outputs, r].
  a: np.ndarray
  b: np.ndarray
  alpha: float

  @property
  def rank(self) -> int:
    """r."""
    return len(self.a)


def of_modules(
  updates: Iterable[tuple[str, WeightLayout, LowRankFactors]],
  *,
  stores_inputs_first: bool,
) -> dict[str, ModuleUpdate]:
  """Returns the updates by the names of modules.

  Args:
    updates: Those of tensors or of their parts.
    stores_inputs_first: Whether tensors are [inputs, outputs].

  Raises:
    ValueError: There is none, or one is of experts, which are no modules.
  """
  parts = collections.defaultdict(list)
  for _, layout, factors in updates:
    if layout.is_expert or len(layout.tensor_shape) != 2:
      raise ValueError(
        f'an adapter of PEFT cannot have updates of experts, got that of'
        f' {layout.tensor}; leave out --adapter, or train with'
        ' LORA_TARGET_LAYERS=attention'
      )
    parts[layout.tensor.removesuffix(_SUFFIX)].append((layout, factors))
  if not parts:
    raise ValueError(
      'an adapter needs low-rank updates, got a checkpoint without; leave out'
      ' --adapter, or train with LORA_RANK'
    )
  return {
    name: _sum(of_module, stores_inputs_first)
    for name, of_module in parts.items()
  }


def make_config(
  modules: Mapping[str, ModuleUpdate],
  layouts: Mapping[str, Sequence[WeightLayout]],
  family: families.Family,
  model_config: Mapping[str, Any],
) -> dict[str, Any]:
  """Returns the contents of adapter_config.json.

  Args:
    modules: The updates by the names of modules.
    layouts: Those of all tensors of the model.
    family: That of the model.
    model_config: Contents of its config.json.
  """
  sizes = {name: (x.rank, x.alpha) for name, x in modules.items()}
  (rank, alpha), _ = collections.Counter(sizes.values()).most_common(1)[0]
  others = {name: x for name, x in sizes.items() if x != (rank, alpha)}
  is_sequence_model = model_config.get('model_type') == 't5'
  tensors = {x.tensor for parts in layouts.values() for x in parts}
  return {
    'peft_type': 'LORA',
    'task_type': 'SEQ_2_SEQ_LM' if is_sequence_model else 'CAUSAL_LM',
    'base_model_name_or_path': model_config.get('_name_or_path'),
    'r': rank,
    'lora_alpha': alpha,
    'rank_pattern': {name: r for name, (r, _) in others.items()},
    'alpha_pattern': {name: x for name, (_, x) in others.items()},
    'target_modules': _targets(modules, tensors),
    'fan_in_fan_out': family.stores_inputs_first,
    'lora_dropout': 0.0,
    'bias': 'none',
    'inference_mode': True,
  }


def write(
  output: pathlib.Path,
  modules: Mapping[str, ModuleUpdate],
  config: Mapping[str, Any],
) -> None:
  """Writes the files of PEFT.

  Args:
    output: The folder.
    modules: The updates by the names of modules.
    config: See `make_config`.
  """
  tensors = {}
  for name, update in modules.items():
    tensors[f'{_PREFIX}{name}.lora_A.weight'] = update.a
    tensors[f'{_PREFIX}{name}.lora_B.weight'] = update.b
  header = safetensors.make_header(
    {name: (x.shape, x.dtype) for name, x in tensors.items()},
    {'format': 'pt'},
  )
  safetensors.write(output / _WEIGHTS_FILE, header, tensors.values())
  (output / _CONFIG_FILE).write_text(json.dumps(config, indent=2) + '\n')


def _sum(
  parts: Sequence[tuple[WeightLayout, LowRankFactors]],
  stores_inputs_first: bool,
) -> ModuleUpdate:
  """Returns the update of a module of those of its parts."""
  factors_a, factors_b = [], []
  for layout, (a, b, _) in parts:
    rows = _output_rows(layout, a.shape[-2], stores_inputs_first)
    num_outputs = layout.tensor_shape[1 if stores_inputs_first else 0]
    num_matrices = math.prod(a.shape[:-2])
    for a_i, b_i, rows_i in zip(
      a.reshape(num_matrices, *a.shape[-2:]),
      b.reshape(num_matrices, *b.shape[-2:]),
      rows.reshape(num_matrices, -1),
      strict=True,
    ):
      factor_b = np.zeros((num_outputs, b.shape[-1]), b.dtype)
      factor_b[rows_i] = b_i
      factors_a.append(a_i.T)
      factors_b.append(factor_b)
  a, b = np.concatenate(factors_a), np.concatenate(factors_b, axis=1)
  # All parts have one scale.
  scale = float(parts[0][1].scale)
  return ModuleUpdate(a, b, float(f'{scale * len(a):.6g}'))


def _output_rows(
  layout: WeightLayout, num_inputs: int, stores_inputs_first: bool
) -> np.ndarray:
  """Returns for each output of a variable the index of that of the tensor."""
  split = list(layout.split_shape)
  positions = list(range(len(split)))
  if not stores_inputs_first:
    positions.reverse()
  size, of_inputs = 1, []
  for i in positions:
    if size == num_inputs:
      break
    size *= split[i]
    of_inputs.append(i)
  for i in of_inputs:
    split[i] = 1
  num_outputs = math.prod(split)
  indices = WeightLayout(
    layout.tensor,
    layout.variable,
    tuple(split),
    layout.axes,
    (num_outputs,),
    part=layout.part,
  )
  return indices.to_variable(np.arange(num_outputs))


def _targets(modules: Collection[str], tensors: Collection[str]) -> list[str]:
  """Returns the last names of the modules, if no other module has them."""
  last = lambda module: module.rpartition('.')[2]
  matrices = {x.removesuffix(_SUFFIX) for x in tensors if x.endswith(_SUFFIX)}
  targets = {last(module) for module in modules}
  if {x for x in matrices if last(x) in targets} <= {*modules}:
    return sorted(targets)
  return list(modules)

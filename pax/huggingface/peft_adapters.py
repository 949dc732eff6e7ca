# SPDX-License-Identifier: Apache-2.0
"""Folders of PEFT with low-rank updates.

PEFT adds lora_alpha / r * lora_B lora_A to the weight [outputs, inputs] of a
module. A module has one update: those of projections that are one tensor, such
as queries, keys and values, become one of the sum of their ranks.
"""

from __future__ import annotations

import collections
import json
import math
import pathlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pax.huggingface import families, model_folder, multimodal, safetensors
from pax.huggingface.low_rank_leaves import LowRankFactors
from pax.huggingface.weight_layouts import WeightLayout

_WEIGHTS_FILE = 'adapter_model.safetensors'
_CONFIG_FILE = 'adapter_config.json'
_PREFIX = 'base_model.model.'
_SUFFIX = '.weight'
_MAGNITUDE = 'lora_magnitude_vector'
_FACTOR = re.compile(
  rf'{re.escape(_PREFIX)}(.*)\.(lora_A\.weight|lora_B\.weight|{_MAGNITUDE})'
)
# Settings that change more than the update of a module, and what they are
# without effect.
_UNSUPPORTED = {
  'bias': 'none',
  'lora_bias': False,
  'modules_to_save': None,
  'target_parameters': None,
  'trainable_token_indices': None,
  'layer_replication': None,
}
# Initializations that change the weights of the model.
_CHANGES_WEIGHTS = ('corda', 'loftq', 'olora', 'pissa')


class ModuleUpdate(NamedTuple):
  """The update of a module, alpha / r * b a, with the norms of its rows."""

  # [r, inputs] and [outputs, r].
  a: np.ndarray
  b: np.ndarray
  alpha: float
  # [outputs], the norms of the rows of the updated weight (DoRA); None: those
  # of the sum.
  magnitude: np.ndarray | None = None

  @property
  def rank(self) -> int:
    """r."""
    return len(self.a)


def of_modules(
  updates: Iterable[tuple[str, WeightLayout, LowRankFactors]],
  family: families.Family,
) -> dict[str, ModuleUpdate]:
  """Returns the updates by the names of modules.

  Args:
    updates: Those of tensors or of their parts.
    family: That of the model.

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
    parts[_module(layout.tensor, family)].append((layout, factors))
  if not parts:
    raise ValueError(
      'an adapter needs low-rank updates, got a checkpoint without; leave out'
      ' --adapter, or train with LORA_RANK'
    )
  return {
    name: _sum(of_module, family.stores_inputs_first)
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
  matrices = {
    _module(x.tensor, family)
    for parts in layouts.values()
    for x in parts
    if x.tensor.endswith(_SUFFIX)
  }
  return {
    'peft_type': 'LORA',
    'task_type': 'SEQ_2_SEQ_LM' if is_sequence_model else 'CAUSAL_LM',
    'base_model_name_or_path': model_config.get('_name_or_path'),
    'r': rank,
    'lora_alpha': alpha,
    'rank_pattern': {name: r for name, (r, _) in others.items()},
    'alpha_pattern': {name: x for name, (_, x) in others.items()},
    # Modules of images have the same last names.
    'target_modules': (
      list(modules) if family.is_part else _targets(modules, matrices)
    ),
    'fan_in_fan_out': family.stores_inputs_first,
    'use_dora': any(x.magnitude is not None for x in modules.values()),
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
    if update.magnitude is not None:
      tensors[f'{_PREFIX}{name}.{_MAGNITUDE}'] = update.magnitude
  header = safetensors.make_header(
    {name: (x.shape, x.dtype) for name, x in tensors.items()},
    {'format': 'pt'},
  )
  safetensors.write(output / _WEIGHTS_FILE, header, tensors.values())
  (output / _CONFIG_FILE).write_text(json.dumps(config, indent=2) + '\n')


def read_config(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the contents of adapter_config.json.

  Args:
    folder: That of an adapter.

  Raises:
    ValueError: It has none, or an adapter that is more than low-rank updates.
  """
  file = folder / _CONFIG_FILE
  if not file.exists():
    raise ValueError(
      f'{folder} must be a folder of PEFT with {_CONFIG_FILE}, got none; save'
      ' the adapter with save_pretrained(folder)'
    )
  config = model_folder.read_object(file)
  unsupported = {
    name: config[name]
    for name, value in {'peft_type': 'LORA', **_UNSUPPORTED}.items()
    if name in config and (config[name] or None) != (value or None)
  }
  init = config.get('init_lora_weights')
  if isinstance(init, str) and init.startswith(_CHANGES_WEIGHTS):
    unsupported['init_lora_weights'] = init
  if unsupported:
    raise ValueError(
      f'{file} must be of low-rank updates of modules alone, got {unsupported};'
      ' merge the adapter into its model with merge_and_unload()'
    )
  return config


def read(folder: pathlib.Path) -> dict[str, ModuleUpdate]:
  """Returns the updates of an adapter by the names of modules.

  Those of a model of images and texts are as in its language model alone.

  Args:
    folder: Has adapter_config.json and adapter_model.safetensors.

  Raises:
    ValueError: See `read_config`, or a tensor is no factor of an update.
  """
  config = read_config(folder)
  factors: dict[str, dict[str, np.ndarray]] = collections.defaultdict(dict)
  for name, entry in safetensors.read_entries(folder / _WEIGHTS_FILE).items():
    match = _FACTOR.fullmatch(name)
    if match is None:
      raise ValueError(
        f'{folder} must have factors lora_A and lora_B of modules only, got'
        f' {name}; train without it, or merge the adapter into its model'
      )
    module = multimodal.module_of_language_model(match[1])
    kind = match[2].removesuffix(_SUFFIX)
    factors[module][kind] = entry.read().astype(np.float32)
  return {
    module: _module_update(folder, config, module, of_module)
    for module, of_module in factors.items()
  }


def _module_update(
  folder: pathlib.Path,
  config: Mapping[str, Any],
  module: str,
  factors: Mapping[str, np.ndarray],
) -> ModuleUpdate:
  a, b = (factors.get(f'lora_{letter}') for letter in 'AB')
  magnitude = factors.get(_MAGNITUDE)
  has_magnitude = bool(config.get('use_dora'))
  expected = 'lora_A [r, inputs] and lora_B [outputs, r]'
  if has_magnitude:
    expected += f' and, with use_dora, {_MAGNITUDE} [outputs]'
  if (
    a is None
    or b is None
    or a.shape[0] != b.shape[-1]
    or has_magnitude != (magnitude is not None)
    or (magnitude is not None and magnitude.shape != b.shape[:1])
  ):
    shapes = {name: list(x.shape) for name, x in factors.items()}
    raise ValueError(
      f'{module} in {folder} must have {expected}, got {shapes}; copy the file'
      ' again'
    )
  return ModuleUpdate(a, b, _alpha(config, module, len(a)), magnitude)


def _alpha(config: Mapping[str, Any], module: str, rank: int) -> float:
  """Returns the number whose quotient by the rank is the scale of an update."""
  alpha = config['lora_alpha']
  for pattern, of_pattern in (config.get('alpha_pattern') or {}).items():
    if re.fullmatch(rf'(.*\.)?({pattern})', module):
      alpha = of_pattern
      break
  if config.get('use_rslora'):
    alpha *= rank**0.5
  return float(alpha)


def _sum(
  parts: Sequence[tuple[WeightLayout, LowRankFactors]],
  stores_inputs_first: bool,
) -> ModuleUpdate:
  """Returns the update of a module of those of its parts."""
  factors_a, factors_b = [], []
  num_outputs = parts[0][0].tensor_shape[1 if stores_inputs_first else 0]
  magnitude = np.full(num_outputs, np.nan, np.float32)
  for layout, (a, b, _, of_part) in parts:
    rows = output_rows(layout, a.shape[-2], stores_inputs_first)
    if of_part is not None:
      magnitude[rows.reshape(-1)] = of_part.reshape(-1)
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
  alpha = float(f'{scale * len(a):.6g}')
  if np.isnan(magnitude).all():
    return ModuleUpdate(a, b, alpha)
  if np.isnan(magnitude).any():
    raise ValueError(
      'an adapter with magnitudes must have those of all outputs of a module,'
      f' got a part of {parts[0][0].tensor}; leave out --adapter'
    )
  return ModuleUpdate(a, b, alpha, magnitude)


def output_rows(
  layout: WeightLayout, num_inputs: int, stores_inputs_first: bool
) -> np.ndarray:
  """Returns for each output of a variable the index of that of the tensor.

  Args:
    layout: Of the variable.
    num_inputs: Those of a matrix of it.
    stores_inputs_first: Whether tensors are [inputs, outputs].
  """
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


def module_of(tensor: str) -> str:
  """Returns the module whose weight is a tensor of a language model.

  Args:
    tensor: Name of the tensor.
  """
  return tensor.removesuffix(_SUFFIX)


def _module(tensor: str, family: families.Family) -> str:
  """Returns the module in a model of the family, which may be a part."""
  name = module_of(tensor)
  return multimodal.module_name(name) if family.is_part else name


def _targets(modules: Collection[str], matrices: Collection[str]) -> list[str]:
  """Returns the last names of the modules, if no other module has them."""
  last = lambda module: module.rpartition('.')[2]
  targets = {last(module) for module in modules}
  if {x for x in matrices if last(x) in targets} <= {*modules}:
    return sorted(targets)
  return list(modules)

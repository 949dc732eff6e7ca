# SPDX-License-Identifier: Apache-2.0
"""Policy and reference of a LanguageModelDPO, two networks of one model."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from pax.checkpoints.types import Shapes
from pax.huggingface.stacked_variables import Variable
from praxis import pax_fiddle
from praxis.layers import models

# Their names, and that of the network of a LanguageModel.
POLICY, REFERENCE, _NETWORK = 'mdl', 'ref_mdl', 'lm'
# Paths of their variables, for `bprop_variable_exclusion`.
REFERENCE_VARIABLES = f'.*/{REFERENCE}/.*'

_REFERENCE_LEAF = re.compile(rf'mdl_vars\.\w+\.{REFERENCE}\.')


def model_of(
  model_p: pax_fiddle.Config[models.LanguageModel], beta: float
) -> pax_fiddle.Config[models.LanguageModelDPO]:
  """Returns the model that learns preferences with a LanguageModel's network.

  Args:
    model_p: The LanguageModel, on its mesh.
    beta: The strength of the KL constraint to the reference.
  """
  return pax_fiddle.Config(
    models.LanguageModelDPO,
    name=model_p.name,
    mdl=model_p.lm_tpl.clone(),
    ref_mdl=model_p.lm_tpl.clone(),
    beta=beta,
    apply_eval_sample_weights=True,
    model_type=model_p.model_type,
    fprop_dtype=model_p.fprop_dtype,
    mesh_axis_names=model_p.mesh_axis_names,
    ici_mesh_shape=model_p.ici_mesh_shape,
    dcn_mesh_shape=model_p.dcn_mesh_shape,
  )


def has_reference(leaves: Iterable[str]) -> bool:
  """Returns whether there are variables of a reference.

  Args:
    leaves: Names of leaves of a checkpoint.
  """
  return any(map(_REFERENCE_LEAF.match, leaves))


def without_reference(shapes: Shapes) -> Shapes:
  """Returns the leaves that are no variables of a reference.

  Args:
    shapes: Shapes and dtypes of the leaves of a checkpoint.
  """
  return {x: s for x, s in shapes.items() if not _REFERENCE_LEAF.match(x)}


def in_network(variables: Sequence[Variable], network: str) -> list[Variable]:
  """Returns the variables of a LanguageModel as those of a network.

  Args:
    variables: The variables.
    network: POLICY or REFERENCE.
  """
  return [
    dataclasses.replace(
      variable,
      path=re.sub(rf'^(\w+)/{_NETWORK}/', rf'\1/{network}/', variable.path),
    )
    for variable in variables
  ]

# SPDX-License-Identifier: Apache-2.0
"""Models with a policy and a frozen reference, two networks of one model."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

import fiddle as fdl

from pax.checkpoints.types import Shapes
from pax.huggingface.stacked_variables import Variable
from praxis import pax_fiddle
from praxis.layers import models

# The network of a LanguageModel.
_NETWORK = 'lm'
# Names of policy and reference of a LanguageModelDPO and a LanguageModelGRPO.
_PAIRS = (('mdl', 'ref_mdl'), (_NETWORK, 'ref_lm'))
# Paths of their variables, for `bprop_variable_exclusion`.
REFERENCE_VARIABLES = '.*/ref_(mdl|lm)/.*'

_REFERENCE_LEAF = re.compile(r'mdl_vars\.\w+\.(ref_mdl|ref_lm)\.')

LanguageModelConfig = pax_fiddle.Config[models.LanguageModel]


def for_preferences(
  model_p: LanguageModelConfig, beta: float
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


def for_rewards(
  model_p: LanguageModelConfig, beta: float, loss_mean: str
) -> pax_fiddle.Config[models.LanguageModelGRPO]:
  """Returns the model that learns from rewards, with a LanguageModel's fields.

  Args:
    model_p: The LanguageModel, on its mesh.
    beta: Weight of the KL divergence from the reference; 0: without one.
    loss_mean: A `PolicyLossMean`.
  """
  rewarded_p: pax_fiddle.Config = model_p.clone()
  fdl.update_callable(rewarded_p, models.LanguageModelGRPO)
  return rewarded_p.set(beta=beta, loss_mean=loss_mean)


def networks_of(leaves: Iterable[str]) -> tuple[str, ...]:
  """Returns the names of the networks of a model: the policy, the reference.

  Args:
    leaves: Names of leaves of its checkpoint.
  """
  found = {m[1] for m in map(_REFERENCE_LEAF.match, leaves) if m}
  return next((x for x in _PAIRS if x[1] in found), (_NETWORK,))


def without_reference(shapes: Shapes) -> Shapes:
  """Returns the leaves that are no variables of a reference.

  Args:
    shapes: Shapes and dtypes of the leaves of a checkpoint.
  """
  return {x: s for x, s in shapes.items() if not _REFERENCE_LEAF.match(x)}


def in_networks(
  variables: Sequence[Variable], networks: Sequence[str]
) -> list[Variable]:
  """Returns the variables of a LanguageModel as those of networks.

  Args:
    variables: The variables.
    networks: Names of networks; each gets all variables.
  """
  return [
    dataclasses.replace(
      variable,
      path=re.sub(rf'^(\w+)/{_NETWORK}/', rf'\1/{network}/', variable.path),
    )
    for network in networks
    for variable in variables
  ]

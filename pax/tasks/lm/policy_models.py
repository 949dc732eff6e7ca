# SPDX-License-Identifier: Apache-2.0
"""Language models that learn from preferences or rewards."""

from __future__ import annotations

import fiddle as fdl

from praxis import pax_fiddle
from praxis.layers import models

LanguageModelConfig = pax_fiddle.Config[models.LanguageModel]


def for_preferences(
  model_p: LanguageModelConfig,
  beta: float,
  *,
  has_low_rank_reference: bool = False,
) -> pax_fiddle.Config[models.LanguageModelDPO]:
  """Returns the model that learns preferences with a LanguageModel's network.

  Args:
    model_p: The LanguageModel, on its mesh.
    beta: The strength of the KL constraint to the reference.
    has_low_rank_reference: Whether the network has the low-rank updates of the
      reference, which then has no other variables.
  """
  return pax_fiddle.Config(
    models.LanguageModelDPO,
    name=model_p.name,
    mdl=model_p.lm_tpl.clone(),
    ref_mdl=None if has_low_rank_reference else model_p.lm_tpl.clone(),
    beta=beta,
    apply_eval_sample_weights=True,
    model_type=model_p.model_type,
    fprop_dtype=model_p.fprop_dtype,
    mesh_axis_names=model_p.mesh_axis_names,
    ici_mesh_shape=model_p.ici_mesh_shape,
    dcn_mesh_shape=model_p.dcn_mesh_shape,
  )


def for_rewards(
  model_p: LanguageModelConfig,
) -> pax_fiddle.Config[models.LanguageModelGRPO]:
  """Returns the model that learns from rewards, with a LanguageModel's fields.

  Args:
    model_p: The LanguageModel, on its mesh.
  """
  rewarded_p: pax_fiddle.Config = model_p.clone()
  fdl.update_callable(rewarded_p, models.LanguageModelGRPO)
  return rewarded_p

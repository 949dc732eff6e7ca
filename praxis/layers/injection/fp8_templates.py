# SPDX-License-Identifier: Apache-2.0
"""Injection of fp8 einsums into the Configs of layers."""

from __future__ import annotations

from collections.abc import Mapping

from praxis import base_layer, pax_fiddle
from praxis.layers import base_ops, find_templates
from praxis.layers.injection import fp8_nvidia_gpu

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

# The fp8 layers that replace EinsumOp and EinsumGatedOp.
_OPS: Mapping[str, Mapping[type, type]] = {
  'delayed': {
    base_ops.EinsumOp: fp8_nvidia_gpu.Fp8EinsumOp,
    base_ops.EinsumGatedOp: fp8_nvidia_gpu.Fp8EinsumGatedOp,
  },
  'current': {
    base_ops.EinsumOp: fp8_nvidia_gpu.Fp8CurrentScalingEinsumOp,
    base_ops.EinsumGatedOp: fp8_nvidia_gpu.Fp8CurrentScalingEinsumGatedOp,
  },
}
# The products with weights of projections, linear layers and experts. Those of
# attention are `qk_einsum_tpl` and `pv_einsum_tpl`.
_FIELDS = ('einsum_tpl', 'einsum_gated_tpl')


def set_fp8_einsums(layer_tpl: LayerTpl, scaling: str) -> None:
  """Computes the products with weights within a layer's Config in fp8.

  Einsums that are set to another layer stay.

  Args:
    layer_tpl: Config of a layer without embeddings and softmax; changed.
    scaling: 'delayed' or 'current'.

  Raises:
    ValueError: the scaling is unknown, or no product with weights can be fp8.
  """
  if scaling not in _OPS:
    raise ValueError(
      f"fp8_scaling must be 'delayed', 'current' or None, got {scaling!r}"
    )
  num_einsums = 0
  for tpl in find_templates.find_target_tpl(layer_tpl, base_layer.BaseLayer):
    for name in set(_FIELDS) & {f.name for f in pax_fiddle.fields_of(tpl.cls)}:
      op = _OPS[scaling].get(getattr(tpl, name).cls)
      if op is not None:
        setattr(tpl, name, pax_fiddle.Config(op))
        num_einsums += 1
  if not num_einsums:
    raise ValueError(
      f'fp8_scaling={scaling!r} needs an einsum_tpl that is EinsumOp, '
      f'{layer_tpl.cls.__name__} has none; set fp8_scaling=None'
    )

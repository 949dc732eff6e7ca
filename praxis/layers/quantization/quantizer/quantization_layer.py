# SPDX-License-Identifier: Apache-2.0
"""QuantizationLayer: einsums of activations and quantized weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from praxis.layers import einsum_equations
from praxis.layers.quantization import operations, quantization_hparams
from praxis.layers.quantization.quantizer import quantized_weights

QuantizationMode = quantization_hparams.QuantizationMode
QuantizationType = quantization_hparams.QuantizationType


class QuantizationLayer(quantized_weights.QuantizedWeights):
  """Declares weights by `set_up_weights`, multiplies by `quantized_einsum`.

  Without `quantization` both are the float operations.
  """

  # Whether served activations may have a scale per row; else they have one.
  _HAS_ROW_SCALES: ClassVar[bool] = True
  # Whether weights have blocks; without, block_size has no effect on them.
  _HAS_BLOCKS: ClassVar[bool] = True

  def quantized_einsum(
    self,
    *,
    eqn: str,
    x: Array,
    w: Array,
    reshape: Sequence[int],
    weight_name: str = 'w',
    scale_eqn: str | None = None,
    zp_eqn: str | None = None,
    swap_xw: bool = False,
  ) -> Array:
    """Returns the einsum of `x` and a weight, quantized by mode and type.

    Args:
      eqn: equation of `x` and the weight.
      x: activations.
      w: the float weight; in mode INFERENCE the weight is read by name.
      reshape: the shape of the weight in `eqn`; empty: its own.
      weight_name: name of the weight.
      scale_eqn: as in `operations.einsum`.
      zp_eqn: as in `operations.einsum`.
      swap_xw: whether the weight is the left operand of `eqn`.

    Raises:
      ValueError: `swap_xw` is set outside mode INFERENCE.
    """
    if self._is_inference:
      return self._inference_einsum(
        eqn, x, reshape, weight_name, (scale_eqn, zp_eqn, swap_xw)
      )
    w = jnp.reshape(w, reshape) if len(reshape) else w
    if not self.quantization:
      return jnp.einsum(eqn, w, x) if swap_xw else jnp.einsum(eqn, x, w)
    if swap_xw:
      raise ValueError(
        'swap_xw=True is for mode INFERENCE only, got '
        f'{self._quantization.mode}; pass the equation of x and w'
      )
    step = self._count_step()
    if self._quantization.mode == QuantizationMode.QT:
      return operations.custom_einsum(
        x,
        w,
        eqn=eqn,
        prng_key=self.next_prng_key(),
        params=self._quantization.quantized_training_params,
      )
    if self._quantization.mode == QuantizationMode.CALIB:
      return self._calibrated_einsum(eqn, x, w)
    if self._quantization.quantization_type == QuantizationType.AQT:
      return operations.aqt_einsum(
        eqn,
        x,
        w,
        lhs_quantizer=self.act_quantizer,
        rhs_quantizer=self.weight_quantizer,
        scale_eqn=scale_eqn,
        zp_eqn=zp_eqn,
      )
    w = self.fake_weight(eqn, w, step)
    return self._clip_to_fp16(jnp.einsum(eqn, self._fake_act(eqn, x), w))

  def fake_weight(self, eqn: str, w: Array, step: Array | None = None) -> Array:
    """Returns the fake-quantized weight for FQ and FQ_VN, else the weight."""
    kind = self._quantization.quantization_type
    params = self._quantization.weight_params
    if kind == QuantizationType.FQ:
      return operations.fakequant_einsum(
        eqn,
        w,
        bits=params.precision,
        use_symmetric=params.use_symmetric,
        calculation_dtype=params.calculation_dtype,
        block_size=self._block_size,
        quant_method=params.quant_method,
      )
    if kind == QuantizationType.FQ_VN:
      return operations.fakequant_vn(
        eqn,
        w,
        self.next_prng_key(),
        params,
        step,
        self.do_eval,
        bits=params.precision,
        calculation_dtype=params.calculation_dtype,
        use_symmetric=params.use_symmetric,
      )
    return w

  # Private methods.

  @property
  def _block_size(self) -> int:
    """Number of contracted elements with a common scale; 0: all."""
    return (
      self._quantization.weight_params.block_size if self._HAS_BLOCKS else 0
    )

  def _inference_einsum(
    self,
    eqn: str,
    x: Array,
    reshape: Sequence[int],
    name: str,
    options: tuple[str | None, str | None, bool],
  ) -> Array:
    params = self._quantization
    scale_eqn, zp_eqn, swap_xw = options
    w, scale, zero_point = self.get_quantized_weight(
      name, params.weight_params.use_symmetric
    )
    parsed = einsum_equations.Equation.parse(eqn)
    parsed = parsed.swapped() if swap_xw else parsed
    packed = self._packed_weight(name)
    if len(reshape):
      packed = packed if tuple(reshape) == w.shape else None
      w = jnp.reshape(w, reshape)
      channel_shape = [
        n for i, n in enumerate(reshape) if i not in parsed.contracted
      ]
      scale = jnp.reshape(scale, channel_shape)
      zero_point = (
        None if zero_point is None else zero_point.reshape(channel_shape)
      )
    scale_act, zp_act, act = None, None, params.act_params
    if act is not None and act.precision is not None:
      x, scale_act, zp_act = operations.reduce_einsum_activation_precision(
        str(parsed),
        x,
        bits=act.precision,
        per_channel=act.per_channel and self._HAS_ROW_SCALES,
        symmetric=act.symmetric,
        percentile=act.clipping_coeff,
      )
    return operations.einsum(
      eqn,
      x,
      w,
      scale,
      zero_point,
      scale_act,
      zp_act,
      scale_eqn,
      zp_eqn,
      swap_xw,
      packed,
    )

  def _calibrated_einsum(self, eqn: str, x: Array, w: Array) -> Array:
    """Returns the einsum; tracks the maximum activation in `framestat`."""
    maximum = jnp.maximum(jnp.max(x), self.get_var('framestat'))
    self.update_var('framestat', maximum.astype(jnp.bfloat16))
    stop = jax.lax.stop_gradient
    return jnp.einsum(eqn, stop(x), stop(w))

  def _fake_act(self, eqn: str, x: Array) -> Array:
    act = self._quantization.act_params
    is_fq = self._quantization.quantization_type == QuantizationType.FQ
    if act is None or act.precision is None or not is_fq:
      return x
    return operations.fakequant_activation(
      x,
      bits=act.precision,
      eqn=eqn,
      per_channel=act.per_channel,
      symmetric=act.symmetric,
      percentile=act.clipping_coeff,
    )

  def _clip_to_fp16(self, product: Array) -> Array:
    act = self._quantization.act_params
    is_fq = self._quantization.quantization_type == QuantizationType.FQ
    if is_fq and act is not None and act.fp16:
      return operations.clip_to_fp16(product)
    return product

  def _count_step(self) -> Array | None:
    """Returns the number of previous training steps if it is counted."""
    if not self._quantization.weight_params.use_step_count:
      return None
    count = self.get_var('step_count')
    if not self.do_eval:
      self.update_var('step_count', count + 1)
    self.add_summary('step_count', count)
    return count

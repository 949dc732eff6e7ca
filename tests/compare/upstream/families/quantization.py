# SPDX-License-Identifier: Apache-2.0
"""Quantized layers: modes by types by settings; sparse and fp8 layers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from praxis import pax_fiddle
from praxis.layers import linears as float_linears
from praxis.layers import quantization
from praxis.layers.injection import fp8_nvidia_gpu
from praxis.layers.quantization import linears as quantized_linears
from praxis.layers.quantization import quantization_hparams as hparams
from praxis.layers.quantization.sparsity import (
  sparsity_hparams,
  sparsity_modes,
)
from tests.compare.upstream import cases
from tests.compare.upstream.cases import Lazy, floats, integers, layer

_X = floats(2, 3, 8)
_HEADS = {'input_dim': 8, 'num_heads': 2, 'dim_per_head': 4}
_DIMS = {'input_dims': 8, 'output_dims': 16}
_TABLE = {'num_classes': 16, 'input_dims': 8}
_AXES = ['data', 'mdl', None, None]
_Mode = hparams.QuantizationMode
_Type = hparams.QuantizationType

# Layer, rank of its weight, fields, arguments, method.
_LAYERS: dict[str, tuple[Any, int, dict[str, Any], tuple[Any, ...], str]] = {
  'Linear': (quantization.Linear, 2, _DIMS, (_X,), '__call__'),
  'AttentionProjection': (
    quantization.AttentionProjection,
    3,
    _HEADS,
    (_X,),
    '__call__',
  ),
  'AttentionProjection, output': (
    quantization.AttentionProjection,
    3,
    {**_HEADS, 'is_output_projection': True},
    (floats(2, 3, 2, 4),),
    '__call__',
  ),
  'AttentionProjection, NHD': (
    quantization.AttentionProjection,
    3,
    {**_HEADS, 'is_output_projection': True, 'use_nhd_shape': True},
    (floats(2, 3, 2, 4),),
    '__call__',
  ),
  'CombinedQKVProjectionLayer': (
    quantization.CombinedQKVProjectionLayer,
    3,
    _HEADS,
    (_X,),
    '__call__',
  ),
  'OneHeadedAttentionProjection': (
    quantization.OneHeadedAttentionProjection,
    2,
    {'input_dim': 8, 'output_dim': 4},
    (_X,),
    '__call__',
  ),
  'Einsum': (
    quantization.Einsum,
    2,
    {'eqn': '...d,df->...f', 'w_shape': (8, 4), 'use_bias': True},
    (_X,),
    '__call__',
  ),
  'Embedding': (
    quantization.Embedding,
    2,
    _TABLE,
    (integers(2, 3, high=16),),
    '__call__',
  ),
  'SharedEmbeddingSoftmax': (
    quantization.SharedEmbeddingSoftmax,
    2,
    _TABLE,
    (_X,),
    'get_logits',
  ),
  'SharedEmbeddingSoftmax.emb_lookup': (
    quantization.SharedEmbeddingSoftmax,
    2,
    _TABLE,
    (integers(2, 3, high=16),),
    'emb_lookup',
  ),
  'NClassMajorSharedEmbeddingSoftmax': (
    quantization.NClassMajorSharedEmbeddingSoftmax,
    2,
    _TABLE,
    (_X,),
    'get_logits',
  ),
  'NClassMajorSharedEmbeddingSoftmax.emb_lookup': (
    quantization.NClassMajorSharedEmbeddingSoftmax,
    2,
    {**_TABLE, 'lookup_style': 'index'},
    (integers(2, 3, high=16),),
    'emb_lookup',
  ),
  'LinearLoRA': (
    quantization.LinearLoRA,
    2,
    {**_DIMS, 'lora_rank': 2},
    (_X,),
    '__call__',
  ),
  'AttentionProjectionLoRA': (
    quantization.AttentionProjectionLoRA,
    3,
    {**_HEADS, 'lora_rank': 2},
    (_X,),
    '__call__',
  ),
  'Conv2D': (
    quantization.Conv2D,
    4,
    {'filter_shape': (3, 3, 3, 4), 'filter_stride': (1, 1)},
    (floats(2, 5, 5, 3),),
    '__call__',
  ),
}
_WEIGHTS: dict[str, dict[str, Any]] = {
  'int8': {},
  'int4': {'precision': 4},
  'int4 unpacked': {'precision': 4, 'use_int4_packed_weights': False},
  'asymmetric': {'use_symmetric': False},
  'dequant_upfront': {'dequant_upfront': True},
  'no eps': {'add_scale_eps': False},
  'clipping': {'min_clipping': 0.8, 'num_optimize_clipping': 4},
  'blocks': {'block_size': 4},
  'int4 blocks': {'block_size': 4, 'precision': 4},
}
_ACTIVATIONS = {
  'weights': None,
  'dynamic activations': {'precision': 8},
  'asymmetric activations': {'precision': 8, 'symmetric': False},
}


def _params(
  mode: Any, kind: Any, weight: dict[str, Any], act: dict[str, Any] | None
) -> Lazy:
  return Lazy(
    lambda: hparams.QuantizationParams(
      quantization_type=kind,
      mode=mode,
      act_params=None if act is None else hparams.ActQuantizationParams(**act),
      weight_params=hparams.WeightQuantizationParams(**weight),
    )
  )


def _case(
  name: str,
  of: tuple[Any, int, dict[str, Any], tuple[Any, ...], str],
  params: Lazy,
  **options: Any,
) -> cases.Case:
  cls, rank, fields, args, method = of
  options = {'method': method, 'tolerance': 5e-6, **options}
  if options['method'] != method:
    options |= {'init_method': method, 'init_args': args}
    args = ()
  return layer(
    name,
    cls,
    *args,
    fields={**fields, 'quantization': params},
    weight_splits={'wt': _AXES[:rank]},
    **options,
  )


def _modes() -> Iterator[cases.Case]:
  """Yields every layer in every mode, with the types that mode has."""
  for name, of in _LAYERS.items():
    for kind in (_Type.PTQ, _Type.AQT, _Type.FQ):
      yield _case(
        f'{name}, {kind.value}, training',
        of,
        _params(_Mode.TRAINING, kind, {}, None),
        variants=(cases.VARIABLES, cases.TRAIN),
      )
    for label, weight in _WEIGHTS.items():
      if label in ('int8', 'asymmetric', 'int4', 'dequant_upfront'):
        yield _case(
          f'{name}, {label}, inference',
          of,
          _params(_Mode.INFERENCE, _Type.PTQ, weight, None),
          variants=(cases.VARIABLES, cases.MESH, cases.EVAL, cases.BFLOAT16),
        )
      yield _case(
        f'{name}, {label}, quantize_weight',
        of,
        _params(_Mode.MATERIALIZE, _Type.PTQ, weight, None),
        method='quantize_weight',
        variants=(cases.EVAL,),
      )
    yield _case(
      f'{name}, quantize_weight of aqt',
      of,
      _params(_Mode.MATERIALIZE, _Type.AQT, {}, {'precision': 8}),
      method='quantize_weight',
      variants=(cases.EVAL,),
    )
    for mode in (_Mode.MATERIALIZE, _Mode.INFERENCE):
      yield _partition_specs(name, of, mode)


def _partition_specs(name: str, of: Any, mode: Any) -> cases.Case:
  cls, rank, fields, args, method = of
  del args, method

  def specs(layer_: Any) -> Any:
    result = layer_.quantized_partition_specs()

    def entries(x: Any) -> Any:
      return str(getattr(x, 'meta', x))

    return jax.tree.map(
      entries,
      result,
      is_leaf=lambda x: isinstance(x, jax.sharding.PartitionSpec),
    )

  return layer(
    f'{name}, {mode.value}, quantized_partition_specs',
    cls,
    fields={
      **fields,
      'quantization': _params(mode, _Type.PTQ, {}, None),
      'ici_mesh_shape': [1, 2, 2],
      'mesh_axis_names': ['replica', 'data', 'mdl'],
    },
    weight_splits={'wt': _AXES[:rank]},
    method=specs,
    init_method=of[4],
    init_args=of[3],
    variants=(cases.EVAL,),
  )


def _activations() -> Iterator[cases.Case]:
  names = (
    'Linear AttentionProjection CombinedQKVProjectionLayer Einsum'
    ' OneHeadedAttentionProjection SharedEmbeddingSoftmax'
  )
  for name in names.split():
    for label, act in _ACTIVATIONS.items():
      if act is None:
        continue
      for kind in (_Type.PTQ, _Type.AQT, _Type.FQ):
        yield _case(
          f'{name}, {kind.value}, {label}, training',
          _LAYERS[name],
          _params(_Mode.TRAINING, kind, {}, act),
          variants=(cases.TRAIN, cases.EVAL),
        )
      for kind in (_Type.PTQ, _Type.AQT):
        yield _case(
          f'{name}, {kind.value}, {label}, inference',
          _LAYERS[name],
          _params(_Mode.INFERENCE, kind, {}, act),
          variants=(cases.EVAL,),
        )


def _sparse() -> Iterator[cases.Case]:
  modes = {
    'training': sparsity_modes.TrainingMode,
    'oneshot': sparsity_modes.OneShotMode,
    'materialize': sparsity_modes.MaterializeMode,
    'inference': sparsity_modes.InferenceMode,
    'fewshot': sparsity_modes.FewShotMode,
  }
  for label, mode in modes.items():
    for rate in ((2, 4), (1, 4), 0.5):
      structured = isinstance(rate, tuple)
      kind = (
        sparsity_hparams.SparsityType.STRUCTURED_NM
        if structured
        else sparsity_hparams.SparsityType.UNSTRUCTURED
      )

      def params(mode: Any = mode, rate: Any = rate, kind: Any = kind) -> Any:
        return sparsity_hparams.SparsityHParams(
          sparsity_type=kind,
          weight_params=sparsity_hparams.WeightSparsityParams(prune_rate=rate),
          mode=mode(),
        )

      for name in ('Linear', 'AttentionProjection', 'Einsum'):
        cls, rank, fields, args, method = _LAYERS[name]
        yield layer(
          f'{name}, sparsity, {label}, {rate}',
          cls,
          *args,
          fields={**fields, 'quantization': None, 'sparsity': Lazy(params)},
          method=method,
          variants=(cases.VARIABLES, cases.TRAIN),
          tolerance=5e-6,
        )


def _others() -> Iterator[cases.Case]:
  yield _case(
    'LinearActScaling',
    (quantized_linears.LinearActScaling, 2, _DIMS, (_X,), '__call__'),
    _params(_Mode.TRAINING, _Type.AQT, {}, {'precision': 8}),
    variants=(cases.VARIABLES, cases.EVAL),
  )
  for name, fields in (
    ('SearchableLinear', _DIMS),
    ('SearchableAttentionProjection', _HEADS),
    ('SearchableCombinedQKVProjectionLayer', _HEADS),
  ):
    for act in (None, {'precision': 8}):
      yield layer(
        f'{name}, {act}',
        getattr(quantization, name),
        _X,
        fields={
          **fields,
          'quantization': _params(_Mode.TRAINING, _Type.AQT, {}, act),
          'precisions': [4, 8],
        },
        variants=(cases.VARIABLES,),
      )
  for name, fields in (
    ('FeedForwardOverflowCheck', _DIMS),
    ('AttentionProjectionOverflowCheck', _HEADS),
    ('CombinedQKVProjectionLayerOverflowCheck', _HEADS),
  ):
    yield layer(
      name,
      getattr(quantization, name),
      _X,
      fields=fields,
      variants=(cases.VARIABLES, cases.EVAL),
    )
  values = (cases.TRAIN, cases.EVAL, cases.BFLOAT16)
  for name, is_direct, variants in (
    ('Fp8EinsumOp', True, cases.ALL_VARIANTS),
    ('Fp8EinsumOp, fake quantization', False, values),
  ):
    einsum = functools.partial(
      pax_fiddle.Config,
      fp8_nvidia_gpu.Fp8EinsumOp,
      use_direct_quant=is_direct,
    )
    yield layer(
      name,
      float_linears.Linear,
      _X,
      fields={**_DIMS, 'einsum_tpl': Lazy(einsum)},
      variants=variants,
    )


def _attentions() -> Iterator[cases.Case]:
  mask = np.triu(np.full((3, 3), -2e38, np.float32), 1)[None, None]
  for kind in (_Type.AQT, _Type.FQ, _Type.PTQ):
    yield layer(
      f'DotProductAttention, {kind.value}',
      quantization.DotProductAttention,
      _X,
      _X,
      _X,
      mask,
      fields={
        'input_dim': 8,
        'hidden_dim': 8,
        'num_heads': 2,
        'quantization': _params(_Mode.TRAINING, kind, {}, {'precision': 8}),
      },
      variants=(cases.VARIABLES, cases.TRAIN, cases.EVAL),
      tolerance=5e-6,
    )
  for name, fields in {
    'Ngrammer': {'unigram_vocab_size': 7},
    'VQNgrammer': {'num_clusters': 3},
  }.items():
    for mode in (_Mode.TRAINING, _Mode.INFERENCE):
      yield layer(
        f'{name}, {mode.value}',
        getattr(quantization, name),
        integers(2, 5, high=7),
        floats(2, 5, 8),
        fields={
          'num_heads': 2,
          'dim_per_head': 4,
          'ngram_vocab_size': 20,
          'ngram_emb_dim': 4,
          'quantization': _params(mode, _Type.PTQ, {}, None),
          **fields,
        },
        variants=(cases.VARIABLES, cases.EVAL),
        tolerance=5e-6,
      )


def family() -> Iterator[cases.Case]:
  yield from _modes()
  yield from _activations()
  yield from _sparse()
  yield from _others()
  yield from _attentions()

# SPDX-License-Identifier: Apache-2.0
"""LLaMA's weights, as Meta or Hugging Face publish them, as variables.

Both store matrices as [outputs, inputs]. Meta rotates neighboring channels,
as our experiments do; Hugging Face has them apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Weights = Mapping[str, np.ndarray]
Tree = dict[str, Any]

# Names of Hugging Face, and those of Meta.
_NAMES = {
  'model.embed_tokens': 'tok_embeddings',
  'model.norm': 'norm',
  'lm_head': 'output',
  'self_attn.q_proj': 'attention.wq',
  'self_attn.k_proj': 'attention.wk',
  'self_attn.v_proj': 'attention.wv',
  'self_attn.o_proj': 'attention.wo',
  'mlp.gate_proj': 'feed_forward.w1',
  'mlp.down_proj': 'feed_forward.w2',
  'mlp.up_proj': 'feed_forward.w3',
  'input_layernorm': 'attention_norm',
  'post_attention_layernorm': 'ffn_norm',
}
# What follows from the sizes, and is no weight.
_TABLES = re.compile(r'.*(rope\.freqs|rotary_emb\.inv_freq)')


def from_huggingface(weights: Weights, llama: Any) -> Tree:
  """Returns the variables of an experiment, from those of LlamaForCausalLM.

  Args:
    weights: by the names of its state_dict.
    llama: a BaseLLaMA of the same sizes.

  Raises:
    ValueError: a weight is missing, is not known, or has another shape.
  """
  renamed = {}
  for name, weight in weights.items():
    stem, _, kind = name.rpartition('.')
    layer = re.match(r'model\.(layers\.\d+)\.(.*)', stem)
    prefix, stem = (f'{layer[1]}.', layer[2]) if layer else ('', stem)
    if stem in ('self_attn.q_proj', 'self_attn.k_proj'):
      weight = _neighbors(np.asarray(weight), llama.DIMS_PER_HEAD)
    renamed[f'{prefix}{_NAMES.get(stem, stem)}.{kind}'] = weight
  return from_meta(renamed, llama)


def from_meta(weights: Weights, llama: Any) -> Tree:
  """Returns the variables of an experiment, from Meta's by their names.

  Raises:
    ValueError: as `from_huggingface`.
  """
  left = {n: w for n, w in weights.items() if not _TABLES.fullmatch(n)}

  def take(name: str, *shape: int) -> np.ndarray:
    weight = left.pop(f'{name}.weight', None)
    if weight is None or weight.shape != shape:
      raise ValueError(
        f'{name}.weight must have shape {list(shape)}, got '
        f'{None if weight is None else list(weight.shape)}; take the weights '
        'of a model of these sizes'
      )
    return np.asarray(weight)

  vocab, model = llama.VOCAB_SIZE, llama.MODEL_DIMS
  layers = [_layer(take, f'layers.{i}', llama) for i in range(llama.NUM_LAYERS)]
  lm = {
    'embedding_lookup': {'emb_var': take('tok_embeddings', vocab, model)},
    'softmax': {'logits_ffn': _linear(take('output', vocab, model))},
    'final_ln': {'scale': take('norm', model)},
    'transformer': _stack(layers, llama.USE_REPEATED_LAYER),
  }
  if left:
    raise ValueError(
      f'{len(left)} weights have no place in the model, such as '
      f'{sorted(left)[:3]}; it has no biases, and {llama.NUM_LAYERS} layers'
    )
  return {'params': {'lm': lm}}


def _layer(take: Callable[..., np.ndarray], name: str, llama: Any) -> Tree:
  model, hidden = llama.MODEL_DIMS, llama.HIDDEN_DIMS
  mlp = f'{name}.feed_forward'
  return {
    'layer_norm': {'scale': take(f'{name}.attention_norm', model)},
    'self_attention': _attention(take, f'{name}.attention', llama),
    'ff_layer': {
      'layer_norm': {'scale': take(f'{name}.ffn_norm', model)},
      'ffn_layer1_gate': _linear(take(f'{mlp}.w1', hidden, model)),
      'ffn_layer1': _linear(take(f'{mlp}.w3', hidden, model)),
      'ffn_layer2': _linear(take(f'{mlp}.w2', model, hidden)),
    },
  }


def _attention(take: Callable[..., np.ndarray], name: str, llama: Any) -> Tree:
  size, heads = llama.DIMS_PER_HEAD, llama.NUM_HEADS
  shared = llama.NUM_KV_HEADS if llama.USE_MQA else heads

  def heads_of(at: str, many: int) -> np.ndarray:
    weight = take(f'{name}.{at}', many * size, llama.MODEL_DIMS)
    return weight.T.reshape(llama.MODEL_DIMS, many, size)

  to_heads = [heads_of('wq', heads)]
  to_heads += [heads_of(at, shared) for at in ('wk', 'wv')]
  back = take(f'{name}.wo', llama.MODEL_DIMS, heads * size)
  post = {'w': back.reshape(llama.MODEL_DIMS, heads, size)}
  if not llama.USE_MQA:
    return {'combined_qkv': {'w': np.stack(to_heads)}, 'post': post}
  if shared == 1:
    # A single head of keys has no axis.
    to_heads[1:] = [x[:, 0] for x in to_heads[1:]]
  names = ('query', 'key', 'value')
  return {n: {'w': w} for n, w in zip(names, to_heads, strict=True)} | {
    'post': post
  }


def _linear(weight: np.ndarray) -> Tree:
  return {'linear': {'w': weight.T}}


def _neighbors(weight: np.ndarray, size: int) -> np.ndarray:
  """Returns a projection with channels i and i + H / 2 side by side."""
  halves = weight.reshape(-1, 2, size // 2, weight.shape[-1])
  return halves.swapaxes(1, 2).reshape(weight.shape)


def _stack(layers: Sequence[Tree], is_repeated: bool) -> Tree:
  if not is_repeated:
    return {f'x_layers_{i}': layer for i, layer in enumerate(layers)}
  return {'repeat': {'sub': {'x_layers_0': _stacked(layers)}}}


def _stacked(trees: Sequence[Any]) -> Any:
  if not isinstance(trees[0], dict):
    return np.stack(trees)
  return {name: _stacked([tree[name] for tree in trees]) for name in trees[0]}

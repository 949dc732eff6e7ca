# SPDX-License-Identifier: Apache-2.0
"""Configs of language model tasks and of their Transformer stacks."""

from __future__ import annotations

from pax import tasks_lib
from praxis import pax_fiddle
from praxis.layers import attentions, context_parallel, models, transformers
from praxis.layers.checkpoint_policy import AutodiffCheckpointType

Config = pax_fiddle.Config

_CONTEXT_METHODS = ('ring', 'all_gather')


def language_model_task(
  model_class: type[models.LanguageModel],
) -> Config[tasks_lib.SingleTask]:
  """Returns a task with a language model whose sizes are not set yet."""
  return Config(
    tasks_lib.SingleTask,
    name='xformer_task',
    model=Config(model_class, name='xformer_lm'),
  )


def repeat_layer(
  stack_p: Config[transformers.StackedTransformer],
  num_repeats: int,
  checkpoint_policy: AutodiffCheckpointType | None = None,
) -> Config[transformers.StackedTransformerRepeated]:
  """Returns a scan over `num_repeats` copies of one layer of the stack."""
  stack_p.num_layers = 1
  repeated_p = Config(
    transformers.StackedTransformerRepeated, block=stack_p, x_times=num_repeats
  )
  if checkpoint_policy is not None:
    repeated_p.checkpoint_policy = checkpoint_policy
  return repeated_p


def set_context_parallel_attention(
  layer_p: Config[transformers.Transformer], method: str
) -> None:
  """Replaces causal self-attention by attention over sharded sequences.

  Args:
    layer_p: A layer with `DotProductAttention`.
    method: 'ring', 'all_gather', or 'compiler', which keeps the attention layer
      and leaves the communication to XLA.

  Raises:
    ValueError: The method is unknown, or does not support the attention layer.
  """
  if method == 'compiler':
    return
  if method not in _CONTEXT_METHODS:
    raise ValueError(
      "CONTEXT_PARALLEL must be 'ring', 'all_gather' or 'compiler', got "
      f'{method!r}; set None for unsharded sequences'
    )
  if layer_p.tr_atten_tpl.cls is not attentions.DotProductAttention:
    raise ValueError(
      f'CONTEXT_PARALLEL={method!r} needs DotProductAttention, got '
      f"{layer_p.tr_atten_tpl.cls.__name__}; set CONTEXT_PARALLEL='compiler'"
    )
  layer_p.tr_atten_tpl = Config(
    context_parallel.ContextParallelAttention,
    context_method=method,
    is_causal=True,
    is_balanced=True,
  )


def maybe_setup_moe_params(model_p: Config) -> None:
  """Copies the feed-forward settings to the MoE layers of a stack, if any."""
  if model_p.num_experts == 0:
    return
  ffn_p = model_p.transformer_layer_params_tpl.tr_fflayer_tpl
  model_p.moe_layer_tpl.set(
    input_dims=model_p.model_dims,
    hidden_dims=model_p.hidden_dims,
    norm_policy=ffn_p.norm_policy,
    ln_tpl=ffn_p.ln_tpl.clone(),
    activation_tpl=ffn_p.activation_tpl.clone(),
    add_skip_connection=ffn_p.add_skip_connection,
    relu_dropout_prob=ffn_p.relu_dropout_prob,
    residual_dropout_prob=ffn_p.residual_dropout_prob,
    relu_dropout_tpl=ffn_p.relu_dropout_tpl.clone(),
    residual_dropout_tpl=ffn_p.residual_dropout_tpl.clone(),
  )

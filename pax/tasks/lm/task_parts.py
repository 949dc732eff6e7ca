# SPDX-License-Identifier: Apache-2.0
"""Parts that the tasks of language models are put together from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pax import learners, tasks_lib
from praxis import optimizers, pax_fiddle, pytypes, schedules
from praxis.layers import attentions, context_parallel, models, transformers
from praxis.layers.checkpoint_policy import AutodiffCheckpointType
from praxis.layers.injection import fp8_nvidia_gpu
from praxis.layers.transformer_models import model_sharding

Config = pax_fiddle.Config
NestedMap = pytypes.NestedMap
TaskConfig = Config[tasks_lib.SingleTask]


def language_model_task(model_class: type[models.LanguageModel]) -> TaskConfig:
  """Returns a task with a language model, its sizes not yet set."""
  return Config(
    tasks_lib.SingleTask,
    name='xformer_task',
    model=Config(model_class, name='xformer_lm'),
  )


def repeated(
  stack_p: Config[transformers.StackedTransformer],
  times: int,
  checkpoint_policy: AutodiffCheckpointType | None = None,
) -> Config[transformers.StackedTransformerRepeated]:
  """Returns a scan over `times` copies of one layer of the stack."""
  stack_p.num_layers = 1
  repeated_p = Config(
    transformers.StackedTransformerRepeated, block=stack_p, x_times=times
  )
  if checkpoint_policy is not None:
    repeated_p.checkpoint_policy = checkpoint_policy
  return repeated_p


def use_fp8(layer_p: Config[transformers.Transformer]) -> None:
  """Lets a transformer layer multiply with its weights in fp8."""
  atten_p = layer_p.tr_atten_tpl
  for tpl in (
    atten_p.proj_tpl,
    atten_p.combined_qkv_proj_tpl,
    layer_p.tr_fflayer_tpl.fflayer_tpl.linear_tpl,
  ):
    tpl.einsum_tpl = Config(fp8_nvidia_gpu.Fp8EinsumOp)


def spread_attention(
  layer_p: Config[transformers.Transformer], how: str
) -> None:
  """Lets a causal layer attend over split sequences.

  Raises:
    ValueError: `how` is none of 'ring', 'all_gather' and 'compiler'.
  """
  if how == 'compiler':
    return
  if how not in ('ring', 'all_gather'):
    raise ValueError(
      "CONTEXT_PARALLEL must be 'ring', 'all_gather' or 'compiler', got "
      f'{how!r}; choose one, or None where sequences are not split'
    )
  if layer_p.tr_atten_tpl.cls is not attentions.DotProductAttention:
    raise ValueError(
      'CONTEXT_PARALLEL needs DotProductAttention, got '
      f"{layer_p.tr_atten_tpl.cls.__name__}; set CONTEXT_PARALLEL='compiler'"
    )
  layer_p.tr_atten_tpl = Config(
    context_parallel.ContextParallelAttention,
    context_method=how,
    is_causal=True,
    is_balanced=True,
  )


def set_default_adam(
  task_p: TaskConfig,
  learning_rate: float,
  weight_decay: float,
  warmup_steps: int = 4000,
  decay_start: int = 4001,
  decay_end: int = 300000,
) -> None:
  """Trains by Adam, warmed up linearly, then decayed exponentially."""
  optimizer_p = Config(
    optimizers.Adam,
    beta1=0.9,
    beta2=0.99,
    weight_decay=weight_decay,
    clip_gradient_norm_to_value=5.0,
  )
  schedule_p = _rampup_then_decay(warmup_steps, decay_start, decay_end)
  _set_learner(task_p, optimizer_p, learning_rate, schedule_p)


def set_default_adafactor(
  task_p: TaskConfig,
  learning_rate: float,
  weight_decay: float,
  warmup_steps: int = 4000,
  decay_start: int = 4001,
  decay_end: int = 100000,
  clip_gradient_norm_to_value: float = 5.0,
) -> None:
  """Trains by sharded Adafactor, with the schedule of `set_default_adam`."""
  optimizer_p = Config(
    optimizers.ShardedAdafactor,
    decay_method='adam',
    beta1=0.9,
    decay_adam=0.99,
    weight_decay=weight_decay,
    clip_gradient_norm_to_value=clip_gradient_norm_to_value,
  )
  schedule_p = _rampup_then_decay(warmup_steps, decay_start, decay_end)
  _set_learner(task_p, optimizer_p, learning_rate, schedule_p)


def maybe_setup_moe_params(model_p: Config) -> None:
  """Gives a stack's experts the settings of its feed-forward layers."""
  if model_p.num_experts == 0:
    return
  ff_p = model_p.transformer_layer_params_tpl.tr_fflayer_tpl
  model_p.moe_layer_tpl.set(
    input_dims=model_p.model_dims,
    hidden_dims=model_p.hidden_dims,
    ln_tpl=ff_p.ln_tpl.clone(),
    activation_tpl=ff_p.activation_tpl.clone(),
    relu_dropout_tpl=ff_p.relu_dropout_tpl.clone(),
    relu_dropout_prob=ff_p.relu_dropout_prob,
    residual_dropout_tpl=ff_p.residual_dropout_tpl.clone(),
    residual_dropout_prob=ff_p.residual_dropout_prob,
    add_skip_connection=ff_p.add_skip_connection,
    norm_policy=ff_p.norm_policy,
  )


def set_sharding_annotations_v1(
  task_p: TaskConfig,
  training_optimized: bool,
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None = None,
) -> None:
  """Splits weights over axes data and mdl, the batch over replica and data."""
  _set_mesh(task_p, ('replica', 'data', 'mdl'), ici_mesh_shape, dcn_mesh_shape)
  _split_batch(task_p, ('replica', 'data'))
  _shard_lm(
    task_p,
    'set_sharding_params_v1',
    replica_axis='replica',
    data_axis='data',
    mdl_axis='mdl',
    training_optimized=training_optimized,
  )


def set_sharding_annotations_with_expert_parallelism(
  task_p: TaskConfig,
  training_optimized: bool,
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None = None,
) -> None:
  """As v1, with an axis data_expert that splits experts and the batch."""
  axes = ('replica', 'data', 'data_expert', 'mdl')
  _set_mesh(task_p, axes, ici_mesh_shape, dcn_mesh_shape)
  _split_batch(task_p, axes[:-1])
  _shard_lm(
    task_p,
    'set_sharding_params_with_expert_parallelism',
    replica_axis='replica',
    data_axis='data',
    data_expert_axis='data_expert',
    mdl_axis='mdl',
    training_optimized=training_optimized,
  )


def set_sharding_annotations_with_context_parallelism(
  task_p: TaskConfig,
  training_optimized: bool,
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None = None,
) -> None:
  """As v1, with an axis seq that splits sequences, and weights like data."""
  axes = ('replica', 'data', 'seq', 'mdl')
  _set_mesh(task_p, axes, ici_mesh_shape, dcn_mesh_shape)
  _split_batch(task_p, axes[:2], 'seq')
  _shard_lm(
    task_p,
    'set_sharding_params_v1',
    replica_axis='replica',
    data_axis='data',
    seq_axis='seq',
    mdl_axis='mdl',
    training_optimized=training_optimized,
  )


def set_pipeline_sharding(
  task_p: TaskConfig,
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int],
  *,
  emb_w_data_dims: str | tuple[str, ...],
  training_optimized: bool,
  inner_axis: str | None,
) -> None:
  """As v1, with an axis stage that splits the layers.

  Outside the pipeline, where there are no stages, that axis splits the batch
  too; what is there is sharded for it. The axis between data and mdl, if any,
  is data_expert or seq.
  """
  experts = ('data_expert',) if inner_axis == 'data_expert' else ()
  seq = 'seq' if inner_axis == 'seq' else None
  batch = ('stage', 'replica', 'data', *experts)
  inner = (seq, 'mdl') if seq else ('mdl',)
  _set_mesh(task_p, (*batch, *inner), ici_mesh_shape, dcn_mesh_shape)
  _split_batch(task_p, batch, seq)
  axes = {'data_expert_axis': 'data_expert'} if experts else {'seq_axis': seq}
  _shard_lm(
    task_p,
    'set_sharding_params_with_expert_parallelism'
    if experts
    else 'set_sharding_params_v1',
    replica_axis='replica',
    data_axis='data',
    mdl_axis='mdl',
    training_optimized=training_optimized,
    **axes,
  )
  lm_p = task_p.model.lm_tpl
  rows = [batch, seq, 'mdl']
  softmax_p, pipeline_p = lm_p.softmax_tpl, lm_p.stacked_transformer_tpl
  wt = [emb_w_data_dims, 'mdl']
  if model_sharding.is_class_major(softmax_p):
    wt.reverse()
  softmax_p.weight_split_dims_mapping.wt = wt
  softmax_p.activation_split_dims_mapping.out = rows
  embedding_p = lm_p.separate_embedding_tpl or softmax_p
  embedding_p.activation_split_dims_mapping.emb_out_split_dims_mapping = rows
  pipeline_p.weight_split_dims_mapping.stages = ['stage']
  pipeline_p.activation_split_dims_mapping.final_out = rows


def _rampup_then_decay(
  warmup_steps: int, decay_start: int, decay_end: int
) -> Config[schedules.BaseSchedule]:
  return Config(
    schedules.LinearRampupExponentialDecay,
    warmup_steps=warmup_steps,
    decay_start=decay_start,
    decay_end=decay_end,
    min_ratio=0.1,
    max=1.0,
  )


def _set_learner(
  task_p: TaskConfig,
  optimizer_p: Config[optimizers.BaseOptimizer],
  learning_rate: float,
  schedule_p: Config[schedules.BaseSchedule],
) -> None:
  optimizer_p.learning_rate = learning_rate
  optimizer_p.lr_schedule = schedule_p
  task_p.train.learner = Config(
    learners.Learner, loss_name='total_loss', optimizer=optimizer_p
  )


def _set_mesh(
  task_p: TaskConfig,
  axis_names: tuple[str, ...],
  ici_mesh_shape: Sequence[int],
  dcn_mesh_shape: Sequence[int] | None,
) -> None:
  if len(ici_mesh_shape) != len(axis_names):
    raise ValueError(
      f'ici_mesh_shape must have one entry for each of {list(axis_names)}, got '
      f'{list(ici_mesh_shape)}'
    )
  task_p.model.set(
    ici_mesh_shape=list(ici_mesh_shape),
    dcn_mesh_shape=None if dcn_mesh_shape is None else list(dcn_mesh_shape),
    mesh_axis_names=list(axis_names),
  )


def _split_batch(
  task_p: TaskConfig, axes: tuple[str, ...], seq: str | None = None
) -> None:
  """Splits the first dimension of every input, and their length."""
  task_p.train.inputs_split_mapping = NestedMap(
    map_1d=(axes,), map_2d=(axes, seq)
  )


def _shard_lm(task_p: TaskConfig, method: str, **axes: Any) -> None:
  """Shards the language model inside the task's model, if there is one."""
  model_p = task_p.model
  if not isinstance(getattr(model_p, 'lm_tpl', None), Config):
    return
  shard = getattr(model_p.lm_tpl.cls, method)
  model_p.lm_tpl = shard(
    model_p.lm_tpl,
    ici_mesh_shape=model_p.ici_mesh_shape,
    dcn_mesh_shape=model_p.dcn_mesh_shape,
    mesh_axis_names=model_p.mesh_axis_names,
    **axes,
  )

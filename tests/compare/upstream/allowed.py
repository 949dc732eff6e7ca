# SPDX-License-Identifier: Apache-2.0
"""Differences from upstream that stay, each with its reason.

docs/layers.md and docs/paxml_names.md describe them to users.
"""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Allowed:
  """Differences whose case and text match; both are regular expressions."""

  case: str
  difference: str
  reason: str


_COMPUTED = r'/(train|eval|bfloat16)$'

ALLOWED: tuple[Allowed, ...] = (
  Allowed(
    r'^(embeddings|quantization|language_models): .*/bfloat16$',
    r'^outputs.*: dtype bfloat16 in upstream, float32 in ours$',
    'logits, losses and metrics stay float32',
  ),
  Allowed(
    r'^(normalizations: BatchNorm|recurrent: Conformer|vision: (ConvBNAct'
    r'|LightConv1D|ResNet|InvertedResidualBlock|MobileNet)).*/bfloat16$',
    r'^outputs.*: dtype float32 in upstream, bfloat16 in ours$',
    'BatchNorm returns fprop_dtype, in eval too, as it does in upstream if the '
    'trainer converted the moving averages; float32 ones promote in upstream',
  ),
  Allowed(
    r'^vision: (Encoder|Decoder)/bfloat16$',
    r'^outputs: values differ by up to 0\.0[0-3]\d* ',
    'moments of GroupNorm are float32, of upstream bfloat16; both results are '
    'within 2% of those in float32',
  ),
  Allowed(
    r'^(normalizations: WeightNormL2|embeddings: PositionalEmbedding2D)'
    r'.*/bfloat16$',
    r'^outputs.*: dtype float32 in upstream, bfloat16 in ours$',
    'these layers return fprop_dtype; upstream returns float32',
  ),
  Allowed(
    r'/(variables|mesh)$',
    r'(moving_mean|moving_variance)\.collections: .*_disallow_bfloat16',
    'moving averages of BatchNorm are not converted to bfloat16, in which they '
    'would stop changing',
  ),
  Allowed(
    _COMPUTED,
    r'^updated\.summaries\..*: missing in upstream',
    'summaries that upstream does not have',
  ),
  Allowed(
    r'attention_mask_summary=True',
    r'attention_mask_scalar: missing in ours',
    'attention masks are image summaries',
  ),
  Allowed(
    r'^attentions: DotProductAttention, (causal, ln_tpl=|norms)',
    r'decoder_cache\.key_(state|post_dconv|post_rotary_pos_emb): values differ',
    'normalized keys are cached, so that decoding gives what training gives; '
    'extend_step of upstream skips ln_tpl',
  ),
  Allowed(
    r'^attentions: convert_paddings_to_mask',
    r'dtype float32 in upstream, bfloat16 in ours',
    'masks have the dtype that was asked for',
  ),
  Allowed(
    r'GShardSharedEmbeddingSoftmax|SigmoidCrossEntropy'
    r'|^language_models: TransformerLm, gshard, ',
    r'outputs\.(accuracy|z_loss): missing in upstream',
    'all softmaxes have the keys of FullSoftmax',
  ),
  Allowed(
    r'^quantization_ops: TensorQuantizer, None, False',
    r'x_min is required',
    'a quantizer without precision returns its input; upstream needs a zero '
    'point that it does not use',
  ),
  Allowed(
    r'^vision: ResNetBasicBlock, zero_init_residual=True/',
    r'bn.gamma.init.scale: values differ',
    'the last gamma of a basic block starts so that the branch is 0, as that '
    'of ResNetBlock does; upstream leaves it at 1',
  ),
  Allowed(
    r'^core: init_var ScaledDeltaOrthogonal',
    r'values differ',
    'ScaledDeltaOrthogonal applies its scale',
  ),
  Allowed(
    r'^core: nested_struct_to_text',
    r'type/jax.numpy/float32',
    'texts name dtypes, not the classes of JAX that stand for them',
  ),
  Allowed(
    r'^recurrent: SSM(Transformer|Gated)',
    r'^outputs\[1\](\.self_atten)?: missing in',
    'transformer layers return a NestedMap of probabilities, without attention '
    'with None in it',
  ),
  Allowed(
    r'^attentions: MultiQueryDotProductAttention, num_kv_heads=2/',
    r'outputs\[1\]: shape \(2, 5, 4, 5\) in upstream',
    'probabilities are [B, N, T, S] with several heads of keys too',
  ),
  Allowed(
    r'^(normalizations|vision): (GroupNorm|WeightNorm|Conv2D).*/bfloat16$',
    r'values differ by up to 0\.03|requires arguments to have the same dtypes',
    'moments are float32; upstream fails on a float32 kernel',
  ),
  Allowed(
    r'^recurrent: Conformer, fflayer_weight_sharing=True/(train|eval)$',
    r'^updated\.summaries\.fflayer_start\.\w+_scalar: values differ',
    'summaries of the second call of a layer are called name1; upstream looks '
    'for the name without its suffix, so that they replace those of the first',
  ),
  Allowed(
    r'^recurrent: S5.*/mesh$',
    r'^upstream raises AssertionError\(\'\'\), ours returns',
    'S5 has partition specs for weights of any rank',
  ),
  Allowed(
    r'^learning: BiTemperedLoss.*/train$',
    r'^(outputs|grads\..*): values differ',
    'with end_step=0 the temperatures hold from the first step on, as the '
    'field says; upstream starts with the cross entropy',
  ),
  Allowed(
    r'^perception: Bregman.*/train$',
    r'components_momentum: values differ',
    'the momentum of the components is kept; upstream reads it and never '
    'writes it',
  ),
  Allowed(
    r'^perception: BregmanNgrammer.*/mesh$',
    r'^upstream raises TypeError.*ours returns',
    'BregmanNgrammer has partition specs',
  ),
  Allowed(
    r'^(quantization|transformers|recurrent|vision): ',
    r'^upstream raises (NotImplementedError|AssertionError|ValueError)'
    r'\(.*(QAT not supported|Asymmetric activation quantization|post_skip'
    r'|Should be removed 2 != 1).*ours returns',
    'modes that upstream does not implement',
  ),
  Allowed(
    r'^transformers: (TransformerFeedForwardMoe|StackedTransformer, experts)',
    r'dead_ReLU_count_scalar: upstream 0, ours [1-9]$',
    'dead neurons are counted with several groups; upstream adds 10 to the '
    'preactivations for each further group that uses a slot',
  ),
  Allowed(
    r'^transformers: CircularLayerwiseShardablePipelined',
    r"^upstream raises AssertionError\(''\), ours returns$",
    'a circular pipeline of a Linear runs; upstream asserts that the sharding '
    'of the leading axes is a tuple, and it is a list',
  ),
  Allowed(
    r'^transformers: StackedTransformerRepeated, sublayer_name=inner/bfloat16$',
    r'^outputs: values differ by up to 0\.0\d+ ',
    'three layers in bfloat16 round in another order; three units',
  ),
  Allowed(
    r'^language_models: TransformerLm, skip_aux_loss, ',
    r'^outputs\.aux_loss(_weight)?: missing in upstream',
    'aux_loss is returned for metrics with skip_aux_loss too',
  ),
  Allowed(
    r'^language_models: LanguageModel, strict/',
    r'^outputs\.per_example\.eval_sample_weights: missing in upstream',
    'per-example outputs always have the eval_sample_weights of the batch',
  ),
  Allowed(
    r'^language_models: TransformerEncoderDecoder, no norms/',
    r'no attribute \"encoder_ln\".*ours returns',
    'encoders and decoders may have no final norm; upstream fails',
  ),
  Allowed(
    r'^language_models: ClassificationModel, sequence/',
    r'^upstream raises ValueError\(.Incompatible shapes.*ours returns',
    'labels are broadcast over further dimensions of the logits',
  ),
  Allowed(
    r'^language_models: set_sharding_params_v1, ',
    r'(_fflayer_tpl|softmax_tpl) activation: .*extend_step',
    'v1 shards the activations of decoding steps too',
  ),
  Allowed(
    r'^language_models: set_sharding_params_v1, separate embedding$',
    r'separate_embedding_tpl weight: upstream .*data.*mdl.*, ours .*mdl.*data',
    'the table [V, D] of an Embedding is sharded by w_vd; upstream transposes '
    'the mapping, as for softmax weights [D, V]',
  ),
  Allowed(
    r'^language_models: set_sharding_params_v1, ',
    r'moe_layer_tpl activation: ',
    'groups of tokens are sharded over all axes of the batch; upstream '
    'replicates them over replica_axis',
  ),
  Allowed(
    r'^language_models: glam/bfloat16$',
    r'^outputs.logits: values differ by up to 0\.02',
    'four layers in bfloat16 round in another order; two units',
  ),
  Allowed(
    r'^language_models: grok/',
    r'self_attention\.(relative_bias|key|query|value|post)\b|named "wrb"',
    'grok keeps the attention options; upstream sets them on a template that '
    'it then replaces',
  ),
  Allowed(
    r'^language_models: decode, (greedy, fprop|beam)/eval$',
    r'^outputs\.logprobs: values differ by up to 1 .*upstream 0, ours 1$',
    'logprobs is 1 at all padding, also after prompts that were right-aligned',
  ),
  Allowed(
    r'^language_models: decode, beam/eval$',
    r'^outputs\.(end_logprobs|hyp_ids|segment_pos): missing in ours',
    'results of a beam search have no state of its loop; logprobs is '
    'end_logprobs',
  ),
  Allowed(
    r'^decoding: beam_search, one step, no length norm$',
    r'^logprobs: values differ by up to 1 .*upstream 0, ours 1$',
    'logprobs is 1 at all padding, also after prompts that were right-aligned',
  ),
  Allowed(
    r'^decoding: flat_beam_search, beam of 3$',
    r'^(decode_lengths|output_ids|scores): ',
    'upstream puts 0 for all later tokens of a slot that once held a '
    'hypothesis with an end-of-sequence token, whichever hypothesis is there',
  ),
  Allowed(
    r'^decoding_functions: right_align_tensors, 2$',
    r'^: values differ',
    'right_align_tensors aligns align_dim; upstream aligns dimension 1, by the '
    'size of align_dim',
  ),
  Allowed(
    r'^language_models: decode, flat beam/eval$',
    r'^upstream raises ValueError\(.extend_step in DotProductAttention only',
    'StackedTransformer decodes with flat beam search; upstream fails',
  ),
  Allowed(
    r'^attentions: (DotProductAttention, causal, output_proj_'
    r'|AttentionProjection, output, )use_nhd_shape=True/mesh$',
    r'^specs.params.(post.)?b: upstream ',
    'the bias of the model dimension is sharded like that dimension; upstream '
    'takes the entry of the heads',
  ),
  Allowed(
    r'^quantization: AttentionProjection, NHD, .*'
    r'(/mesh|quantized_partition_specs/eval)$',
    r'^(specs|outputs)\.params\.(b|w_quantized_scale)(\.meta)?: upstream .*, '
    r'ours ',
    'the bias of the model dimension is sharded like that dimension; upstream '
    'takes the entry of the heads',
  ),
  Allowed(
    r'^quantization: (LinearLoRA|AttentionProjectionLoRA), .*'
    r'(quantize_weight|partition_specs)',
    r'^outputs\.params\.w_(left|right)(\.meta)?: missing in upstream',
    'quantized trees have all variables that the served layer declares; '
    'upstream drops the factors of LoRA',
  ),
  Allowed(
    r'^quantization: OneHeadedAttentionProjection, .*'
    r'(quantize_weight|partition_specs)',
    r'^outputs\.params\.b(\.meta)?: missing in upstream',
    'quantized trees have all variables that the served layer declares; '
    'upstream drops the bias of OneHeadedAttentionProjection',
  ),
  Allowed(
    r'^quantization: Einsum, .*(quantize_weight|partition_specs)',
    r'^outputs\.params\.(w(:|_quantized_(scale|zp): missing in upstream)'
    r'|w_quantized_scale\.meta)',
    'quantize_weight of Einsum quantizes, as the served layer needs; upstream '
    'returns floats',
  ),
  Allowed(
    r'^quantization: AttentionProjection(LoRA)?, blocks, quantize_weight',
    r'^outputs\.params\.(w: upstream|w_quantized_scale: shape \(4, 2, 4\) in)',
    'a block of a projection has one scale, as the served layer declares; '
    'quantize_weight of upstream returns one per position in the block',
  ),
  Allowed(
    r'^quantization: NClassMajorSharedEmbeddingSoftmax, int4( blocks)?, '
    r'quantize_weight',
    r'^outputs\.params\.w: (dtype int8|shape \(16, 8\)) in upstream',
    'quantize_weight of a class-major table packs, as the served layer needs; '
    'upstream does not',
  ),
  Allowed(
    r'^quantization: NClassMajorSharedEmbeddingSoftmax\.emb_lookup, .*'
    r'(quantize_weight|quantized_partition_specs)',
    r'^upstream raises ScopeParamNotFoundError.*"b" in scope "/bias".*, ours '
    r'returns$',
    'a softmax that was initialized by emb_lookup is quantized without a bias; '
    'upstream fails',
  ),
  Allowed(
    r'^quantization: NClassMajorSharedEmbeddingSoftmax, quantize_weight of aqt',
    r'^upstream raises NotImplementedError\(.Activation quantization is not '
    r'implemented for NClassMajor.*, ours returns$',
    'modes that upstream does not implement',
  ),
  Allowed(
    r'^quantization: LinearLoRA, .*/(mesh|eval)$',
    r"^upstream raises AssertionError\(''\), ours returns$",
    'LinearLoRA has partition specs; upstream splits the sharding object, not '
    'its `wt`',
  ),
  Allowed(
    r'^quantization: AttentionProjectionLoRA, int4, inference/(variables|mesh)',
    r"w_left\.shape: upstream '\[1, 2\]', ours '\[8, 2\]'",
    'the factors of LoRA have the sizes of the unpacked weight; upstream '
    'takes those of the packed one and fails on any input',
  ),
  Allowed(
    r'^quantization: Conv2D, int4( blocks)?, quantize_weight',
    r'^upstream raises NotImplementedError\(.QAT not supported.*, ours '
    r'ValueError\(.dimension 0 of shape \[3, 3, 3, 4\]',
    'Conv2D is quantized in all modes, packed if its shape permits',
  ),
  Allowed(
    r'^quantization: Fp8EinsumOp/(variables|mesh)$',
    r'(scale|amax_history)\.collections: .*ours .* _take_largest_gradient',
    'scales and histories of fp8 combine by maximum over uses and microbatches',
  ),
  Allowed(
    r'^quantization: \w+, sparsity, fewshot, ',
    r'^upstream raises AssertionError\(.`num_shots should be set.*, ours '
    r'ValueError\(.num_shots must be',
    'both refuse the setting, upstream by assert, ours by a ValueError with '
    'name and value',
  ),
  Allowed(
    r'^quantization: CombinedQKV\w+, aqt, asymmetric activations, training/',
    r'^(outputs|grads)\S*: values differ by up to',
    'AQT keeps the zero point of activations, as serving does; upstream drops '
    'it',
  ),
  Allowed(
    r'^quantization_ops: get_sparsity_mask_unstructured, None$',
    r'^upstream raises TypeError\(.percentile requires.*, ours ValueError\(',
    'both refuse None',
  ),
  Allowed(
    r'^metrics: WeightedScalarCluMetric, no weight$',
    r'^: finite in one only: upstream nan, ours 0',
    'the mean of no weight is 0',
  ),
  Allowed(
    r'^metrics: .*, aggregate, replicas=False$',
    r"^upstream raises AssertionError\(''\), ours returns$",
    'aggregate outside pmap returns the metrics; upstream asserts replicas',
  ),
  Allowed(
    r'^metrics: histogram( of all)?, finalize, ',
    r'^second(: missing in upstream|\.codes_\w+\[\d\]: missing in ours)',
    'finalize clears all metrics; upstream does not clear HistogramMetrics',
  ),
  Allowed(
    r'^metrics: mean of vectors, finalize, ',
    r"^upstream raises ValueError\('Incompatible shapes for broadcasting",
    'vectors have a weighted mean; upstream fails',
  ),
  Allowed(
    r'^metrics: max of vectors, finalize, ',
    r'dtype float32 in upstream, float64 in ours$',
    'metrics of batches are reduced in float64',
  ),
  Allowed(
    r'^metrics: l2_mean, (2|20)$',
    r"^upstream raises TypeError\('reduce\(\) of empty iterable",
    'trees with None have norms; upstream fails',
  ),
  Allowed(
    r'^metrics: metric_utils.compute_metric_values, number$',
    r'^upstream raises ValueError\(.Unrecognized .*ours returns$',
    'computed values may be numbers; clu is no dependency',
  ),
  Allowed(
    r'^metrics: metric_utils.is_float_convertible, empty list$',
    r'upstream 1, ours 0$',
    'an empty list has no mean: as_float raises on both sides',
  ),
  Allowed(
    r'^ghostnorm: GroupNorm, (ones|scales)$',
    r'^upstream raises ValueError\(.`inputs.ndim=2` must be equal to '
    r'.*ours returns$',
    'GroupNorm has per-example norms; upstream runs it without the batch',
  ),
  Allowed(
    r'^ghostnorm: Linear, force_no_replace$',
    r'^upstream raises ValueError\(.*, ours TypeError\(.a layer computes with ',
    'both refuse ParamWithAux in a Linear that is neither replaced nor wrapped',
  ),
  Allowed(
    r'^ghostnorm: generate_wrapped_template, batch norm$',
    r"^upstream raises ValueError\(.Can't get default value for dataclass "
    r'field.*ours returns$',
    'templates of layers with default factories are wrapped; upstream fails',
  ),
  Allowed(
    r'^(train_states|train_steps|learning): .*[aA]dafactor'
    r'|^train_states: no mesh, ',
    r"\.(m|m_scale|vr|vc|v)(\..*)?: upstream ('?float32\[(\d+, )*1\]'?"
    r"|'\[1\] float64 None'|'PartitionSpec\((None,? ?)*\)'), ours 'masked'$",
    'moments of ShardedAdafactor that a variable does not have are masked; '
    'upstream keeps one zero for each',
  ),
  Allowed(
    r'^(train_states|train_steps|learning): .*[aA]dafactor'
    r'|^train_states: no mesh, ',
    r"\.summaries: missing in upstream, ours '\{\}'$",
    'the state of ShardedAdafactor has a place for its summaries',
  ),
  Allowed(
    r'^learning: Lion, ',
    r'^specs\[2\]\.m\..*: upstream .\[.*\] float32 .*, ours .\[.*\] bfloat16 ',
    'specs have the dtype of the state; upstream declares the momentum as '
    'float32 and creates it with m_dtype',
  ),
  Allowed(
    r'^learning: .*ewc_regularizer_weight=',
    r'^(specs|state)\[4\]\.var_weights\..*: missing in ours',
    'the weights of EWC are settings, not state',
  ),
  Allowed(
    r'^train_states: (unsharded|.* and unsharded)',
    r"^upstream raises ValueError\('Attempting to use an optimizer in "
    r'sharded_chain that .*ours returns$',
    'states of Optax transformations have partition specs; upstream fails',
  ),
  Allowed(
    r'^train_states: [\w ]+ and [\w ]+, repeated, specs$',
    r"\.inner_state.*: upstream .PartitionSpec\(.*\)., ours 'masked'$",
    'specs have the structure of the state: variables of the other optimizer '
    'are masked',
  ),
  Allowed(
    r'^train_states: optax, repeated, specs$',
    r"upstream None, ours 'masked'$",
    'specs have the structure of the state: variables with another prefix are '
    'masked',
  ),
  Allowed(
    r'^train_states: not vectorized, adam ema, repeated, (specs|padded)$',
    r'\.ema\.params\.repeat\.',
    'moving averages of stacked variables have their shape; upstream drops the '
    'prefix',
  ),
  Allowed(
    r'^train_states: create_train_state_metadata, .*, True$',
    r'^padded\.',
    'tasks pad no array: a dimension that the mesh does not divide is whole',
  ),
  Allowed(
    r'^train_steps: train, ',
    r'summary_tensors\.(learning/(skipped_steps|is_finite_gradient)'
    r'_aggregate_scalar|dp_metrics/noise_std_scalar): missing in upstream',
    'summaries that upstream does not have',
  ),
  Allowed(
    r'^train_steps: train, \w+, accumulator',
    r'\.summary_tensors\.(learning/)?lr_aggregate_scalar: values differ ',
    'the learning rate of accumulated gradients is that of their update; '
    'upstream counts batches',
  ),
  Allowed(
    r'^train_steps: train, \w+, two optimizers',
    r'summary_tensors\.(lr|learning/(lr|applied_grad_norm|is_valid_step))'
    r'_aggregate_scalar: missing in upstream',
    'MultiOptimizerLearner has the summaries of Learner, too',
  ),
  Allowed(
    r'^train_steps: train, (dp noise|dp normalized|ghost noise|per core), '
    r'replicas$',
    r': values differ',
    'replicas fold their index into the key: their noise is independent with '
    'one key too; `noise over replicas` compares its deviation',
  ),
  Allowed(
    r'^train_steps: (train|eval), repeated, ',
    r'summary_tensors\.lm/transformer/repeat/.*: shape \(1,\) in upstream, '
    r'\(\) in ours$',
    'summaries of a repeated layer have the shapes of the layer; upstream '
    'keeps the dimension of the loop',
  ),
  Allowed(
    r'^record_inputs: TFRecordBertInput, ',
    r'segment_ids: dtype float32 in upstream, int32 in ours$',
    'ids of segments are integers, as in all batches of text',
  ),
  Allowed(
    r'^record_inputs: TFRecordBertInput, 4 rows, ',
    r'\.paddings: values differ by up to 1 .*upstream 0, ours 1$',
    'rows that fill a batch are padding; upstream marks them as text, because '
    'it looks for another key',
  ),
  Allowed(
    r'^(?!quantization: )',
    # Of both sides: neither accepts the setting.
    r'^upstream raises AssertionError\(.*, ours ValueError\(',
    'both refuse the setting, upstream by assert, ours by a ValueError with '
    'name and value',
  ),
)


def reason_of(case: str, difference: str) -> str | None:
  """Returns why a difference stays, or None if it must not."""
  for entry in ALLOWED:
    if re.search(entry.case, case) and re.search(entry.difference, difference):
      return entry.reason
  return None

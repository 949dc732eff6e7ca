# SPDX-License-Identifier: Apache-2.0
"""The base class of layers and what it is made of; this module re-exports."""

from flax.core.meta import AxisMetadata, TAxisMetadata

from praxis.alias_names import module_getattr as _module_getattr
from praxis.base_layer.children import instantiate_layer
from praxis.base_layer.initializers import (
  WeightInit,
  default_param_init,
  get_fan_in_fan_out,
  is_default_param_init,
  scaled_delta_orthogonal,
  scaled_orthogonal,
)
from praxis.base_layer.jax_context import (
  JaxContext,
  add_global_summary,
  all_global_summaries,
  clear_global_summary,
  cur_jax_context,
)
from praxis.base_layer.layer import (
  BaseHParams,
  BaseLayer,
  BaseLayerT,
  LayerTpl,
  Theta,
  ThetaDescriptor,
  assert_has_shape,
  get_template_fields,
  is_running_under_pmap,
  is_sublayer_template_or_instance,
)
from praxis.base_layer.quantized_variables import (
  QUANTIZED_SCALE_NAME_POSTFIX,
  QUANTIZED_ZP_NAME_POSTFIX,
  SPARSITY_NAME_POSTFIX,
  BoxedPartitionSpec,
)
from praxis.base_layer.row_gathers import gather_rows
from praxis.base_layer.sharding_annotations import (
  ActivationSharding,
  WeightSharding,
  axes_of_dimension,
  matrices_sharded_over,
  maybe_shard,
  maybe_transpose_mesh_axes,
  merge_splits,
  replicate_dims,
  to_partition_spec,
  transpose_one_axis,
  var_partition_specs,
  zero_shard_padding,
)
from praxis.base_layer.summary_types import (
  SummaryType,
  get_summary_base_type,
  get_summary_type_from_key,
  get_summary_type_suffix,
  trim_summary_type_from_key,
)
from praxis.base_layer.variable_collections import (
  AUX_LOSS,
  DECODE_CACHE,
  DEFAULT_INIT_MUTABLE_LIST,
  HYPER_PARAMS,
  INTERMEDIATES,
  NON_PAX_RNG_KEY,
  NON_PAX_VAR_COLLECTION,
  NON_TRAINABLE,
  PARAMS,
  PMAP_PARALLEL_AXIS_NAME,
  PREFIX_DECODE_CACHE,
  RANDOM,
  SUMMARIES,
  AuxLossStruct,
  DecodeStateTransformFn,
  WrappedHParams,
)
from praxis.base_layer.weight_params import (
  BoxedParam,
  NestedWeightHParams,
  WeightHParams,
  WeightHParamsCollection,
  init_var,
  maybe_unbox_value,
  unbox_meta,
  var_disallow_bfloat16_conversion,
  var_init_scale,
  var_is_trainable,
  var_not_trainable,
  var_overwrite_with_gradient,
  var_requires_mean_sync,
  var_requires_sum_sync,
  var_skip_lp_regularization,
  var_take_largest_gradient,
)
from praxis.base_layer.weight_sharing import SharedLayer, compatible_hparams
from praxis.pax_fiddle import instantiate
from praxis.pytypes import SplitDimsMapping

__getattr__ = _module_getattr(__name__)

# The name of BaseLayer in older code.
BaseLayerApi = BaseLayer

__all__ = [name for name in dir() if not name.startswith('_')]

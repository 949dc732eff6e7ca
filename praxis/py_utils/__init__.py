# SPDX-License-Identifier: Apache-2.0
"""Utilities on pytrees, arrays, sequences, devices and timing; re-exports."""

from praxis.alias_names import module_getattr
from praxis.nested_map import NestedMap
from praxis.py_utils.arrays import (
  apply_mask_to_logits,
  combine_inner_and_outer_batches,
  get_large_negative_number,
  is_narrow_float,
  l2_normalize,
  maybe_cast_float,
  pad_or_trim_to,
  pad_to_multiple,
  reshape_with_outer_batch_size,
)
from praxis.py_utils.example_ids import (
  ENUM_PROVENANCE_KEYS,
  INDEX_WITHIN_SHARD_KEY,
  NUM_SHARDS_KEY,
  PROVENANCE_PREFIX,
  SHARD_INDEX_KEY,
  get_enumeration_id,
  sharded_file_pattern_to_glob,
)
from praxis.py_utils.jaxprs import sub_jaxprs
from praxis.py_utils.key_paths import (
  Patterns,
  extract_keys,
  extract_prefixed_keys_from_nested_map,
  map_with_path,
  match_variable_names,
  select_nodes_by_indices,
  tree_paths,
  update_matched_variables,
)
from praxis.py_utils.platforms import (
  is_mock_tpu_backend,
  target_platform,
  tracing_for,
)
from praxis.py_utils.process_state import (
  ThreadLocalStack,
  logging_verbosity_level,
  pmap_use_tensorstore,
)
from praxis.py_utils.sequences import (
  append_eos,
  apply_padding,
  concat_sequences_with_padding,
  flip_sequence,
  sequence_lengths,
  sequence_mask,
  sequence_paddings,
)
from praxis.py_utils.sharded_arrays import (
  convert_fully_replicated_array_to_pmap_array,
  convert_host_local_array_to_global_array,
  create_device_mesh,
  get_global_input_shape_dtype,
  get_uneven_sharding_paddings,
  global_mesh_defined,
  is_tpu,
  make_array,
  maybe_pad_uneven_sharding,
  maybe_slice_uneven_sharding,
  maybe_unreplicate_for_first_shard,
  maybe_unreplicate_for_fully_replicated,
  mesh_axes,
  put_to_devices,
  reshard,
  set_globally_use_rbg_prng_key,
  sync_global_devices,
  unshard,
  with_sharding_constraint,
)
from praxis.py_utils.timing import RunningPeriod, benchmark, timeit
from praxis.py_utils.tree import (
  BpropMaskedNode,
  assert_same_shape_and_dtype,
  concat_nested_maps,
  filter_by_matching_keys,
  is_bprop_masked_node,
  is_optax_masked_node,
  merge_dict,
  total_num_vars,
  tree_size,
  tree_unstack,
)
from praxis.pytypes import JTensor, Nested

__all__ = [name for name in dir() if not name.startswith('_')]
__getattr__ = module_getattr(__name__)

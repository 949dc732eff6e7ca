# SPDX-License-Identifier: Apache-2.0
"""Re-exports the building blocks of decoding under upstream's path."""

from praxis.alias_names import module_getattr
from praxis.decoding.hparams import (
  ControlledDecodingHParams as ControlledDecodingHParams,
)
from praxis.decoding.hparams import ProcessResultFn as ProcessResultFn
from praxis.decoding.hypotheses import gather_logprobs as gather_logprobs
from praxis.decoding.hypotheses import gather_output_id as gather_output_id
from praxis.decoding.hypotheses import length_norm as length_norm
from praxis.decoding.hypotheses import two_stage_topk as two_stage_topk
from praxis.decoding.mesh_transpose import (
  maybe_decode_mesh_transpose as maybe_decode_mesh_transpose,
)
from praxis.decoding.mesh_transpose import (
  maybe_reshard_mdl_for_decode as maybe_reshard_mdl_for_decode,
)
from praxis.decoding.model_fns import (
  ExpandedExtendStepFn as ExpandedExtendStepFn,
)
from praxis.decoding.model_fns import ExtendStepFn as ExtendStepFn
from praxis.decoding.model_fns import FPropFn as FPropFn
from praxis.decoding.model_fns import (
  LazyBroadcastPrefixFn as LazyBroadcastPrefixFn,
)
from praxis.decoding.model_fns import TransformStateFn as TransformStateFn
from praxis.decoding.model_fns import (
  coerce_to_expanded_extend_step_fn as coerce_to_expanded_extend_step_fn,
)
from praxis.decoding.sample_results import (
  collect_results_to_optimize_eos as collect_results_to_optimize_eos,
)
from praxis.decoding.sequence_alignment import (
  concat_suffix_and_left_align as concat_suffix_and_left_align,
)
from praxis.decoding.sequence_alignment import (
  left_align_kv_cache as left_align_kv_cache,
)
from praxis.decoding.sequence_alignment import (
  left_align_tensor as left_align_tensor,
)
from praxis.decoding.sequence_alignment import (
  right_align_tensors as right_align_tensors,
)
from praxis.decoding.state_transforms import (
  batch_broadcast_state_fn as batch_broadcast_state_fn,
)
from praxis.decoding.state_transforms import pad_state_fn as pad_state_fn
from praxis.decoding.state_transforms import (
  right_align_state_fn as right_align_state_fn,
)
from praxis.decoding.state_transforms import slice_state_fn as slice_state_fn
from praxis.decoding.stop_sequences import (
  end_with_any_sequence_any_position as end_with_any_sequence_any_position,
)
from praxis.decoding.stop_sequences import (
  end_with_sequences as end_with_sequences,
)
from praxis.decoding.stop_sequences import (
  find_first_new_stop_seq_match as find_first_new_stop_seq_match,
)
from praxis.decoding.stop_sequences import has_any_eos as has_any_eos
from praxis.decoding.streaming import (
  StreamingResultCallback as StreamingResultCallback,
)
from praxis.decoding.token_samplers import DUMMY_PRNG_KEY as DUMMY_PRNG_KEY

__getattr__ = module_getattr(__name__)

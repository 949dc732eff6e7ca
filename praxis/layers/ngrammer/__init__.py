# SPDX-License-Identifier: Apache-2.0
"""N-Grammer layers: embeddings augmented with latent bigram embeddings.

References: N-Grammer: Augmenting Transformers with latent n-grams,
https://arxiv.org/abs/2207.06366
"""

from praxis.alias_names import module_getattr
from praxis.layers.ngrammer.bigrams import get_bigram_ids as get_bigram_ids
from praxis.layers.ngrammer.bregman_compression import (
  BregmanCompression as BregmanCompression,
)
from praxis.layers.ngrammer.bregman_ngrammer import (
  BregmanNgrammer as BregmanNgrammer,
)
from praxis.layers.ngrammer.ngram import Ngrammer as Ngrammer
from praxis.layers.ngrammer.per_head_norm import NgrammerStub as NgrammerStub
from praxis.layers.ngrammer.vector_quantization import (
  VectorQuantization as VectorQuantization,
)
from praxis.layers.ngrammer.vq_ngrammer import VQNgrammer as VQNgrammer

__getattr__ = module_getattr(__name__)

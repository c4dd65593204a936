#include "ir/facts/op_table.h"

#include <llvm/ADT/StringMap.h>
#include <llvm/ADT/Twine.h>

#include <string>

namespace gravure {
namespace {

using Table = llvm::StringMap<OpRow>;

void addAliases(Table& table) {
  // Composite operators that hand out views without saying so (an autograd matter: "unsafe" means
  // that the view is not tracked), or the operand itself where there is nothing to do.
  for (const char* name : {"_unsafe_view",
                           "unsafe_split",
                           "unsafe_chunk",
                           "unsafe_split_with_sizes",
                           "_cast_Byte",
                           "_cast_Char",
                           "_cast_Double",
                           "_cast_Float",
                           "_cast_Half",
                           "_cast_Int",
                           "_cast_Long",
                           "_cast_Short",
                           "type_as",
                           "align_as",
                           "sum_to_size",
                           "conj_physical",
                           "data",
                           "lift",
                           "dropout",
                           "alpha_dropout",
                           "feature_dropout",
                           "feature_alpha_dropout",
                           "atleast_1d",
                           "atleast_2d",
                           "atleast_3d",
                           "channel_shuffle",
                           "native_channel_shuffle",
                           "pixel_shuffle",
                           "pixel_unshuffle",
                           "dequantize",
                           "to_dense",
                           "to_dense_backward",
                           "to_mkldnn_backward",
                           "_saturate_weight_to_fp16",
                           "_lazy_clone",
                           "_add_batch_dim",
                           "_remove_batch_dim",
                           "_no_grad_embedding_renorm_",
                           "_foobar",
                           "_test_string_default",
                           "_test_optional_filled_intlist",
                           "_test_optional_floatlist",
                           "_test_optional_intlist",
                           "_test_parallel_materialize"}) {
    table[(llvm::Twine("aten::") + name).str()].aliasesFirst = true;
  }
  for (const char* name : {"_c10d_functional::wait_tensor", "c10d_functional::wait_tensor",
                           "_c10d_functional::_wrap_tensor_autograd", "inductor::_alloc_from_pool",
                           "inductor::_reinterpret_tensor", "prims::device_put"}) {
    table[name].aliasesFirst = true;
  }
  for (const char* name :
       {"aten::broadcast_tensors", "aten::meshgrid", "aten::einsum", "aten::flatten_dense_tensors",
        "aten::unflatten_dense_tensors", "aten::align_tensors", "aten::cartesian_prod",
        "aten::chain_matmul", "aten::histogramdd", "aten::_pack_sequence", "aten::_to_cpu",
        "aten::set", "aten::set_", "aten::shallow_copy_data_", "aten::sorted",
        "fsdp::all_gather_copy_in", "symm_mem::get_remote_tensors"}) {
    table[name].aliasesAll = true;
  }
}

void addWrites(Table& table) {
  static constexpr const char* kGathered[] = {"all_gather_output"};
  table["fsdp::all_gather_copy_in"].writes = kGathered;
  static constexpr const char* kVariable[] = {"variable"};
  static constexpr const char* kWeight[] = {"weight"};
  table["aten::_no_grad_embedding_renorm_"].writes = kWeight;
  static constexpr const char* kSelf[] = {"self"};
  table["aten::_lazy_clone"].writes = kSelf;  // its memory is copied at the next write
  for (const char* name : {"inductor::accumulate_grad_", "inductor::resize_storage_bytes_"}) {
    table[name].writes = kVariable;
  }
  // Batch norm writes its running statistics in training; these schemas are not marked.
  static constexpr const char* kRunning[] = {"running_mean", "running_var"};
  for (const char* name :
       {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm",
        "aten::batch_norm", "aten::instance_norm", "aten::_batch_norm_impl_index",
        "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts",
        "aten::batch_norm_update_stats"}) {
    table[name].writes = kRunning;
  }
}

void addReasons(Table& table) {
  using enum HostReason;
  for (const char* name : {"_local_scalar_dense",
                           "item",
                           "is_nonzero",
                           "equal",
                           "allclose",
                           "_linalg_check_errors",
                           "inverse",
                           "linalg_cholesky",
                           "linalg_inv",
                           "linalg_ldl_factor",
                           "linalg_lu_factor",
                           "linalg_matrix_power",
                           "linalg_solve",
                           "linalg_tensorinv",
                           "linalg_tensorsolve",
                           "matrix_power",
                           "corrcoef",
                           "cov",
                           "istft",
                           "nanquantile",
                           "quantile",
                           "narrow.Tensor",
                           "randint_like.Tensor",
                           "randint_like.Tensor_out",
                           "randint_like.Tensor_generator",
                           "randint_like.Tensor_generator_out",
                           "_test_check_tensor"}) {
    table[(llvm::Twine("aten::") + name).str()].reason = HostSync;
  }
  // Their ends are read from tensors.
  for (const char* name : {"linspace", "logspace"}) {
    for (const char* ends : {"Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"}) {
      for (const char* out : {"", "_out"}) {
        table[(llvm::Twine("aten::") + name + "." + ends + out).str()].reason = HostSync;
      }
    }
  }
  for (const char* name : {"aten::_unique",
                           "aten::_unique2",
                           "aten::unique_dim",
                           "aten::unique_dim_consecutive",
                           "aten::unique_consecutive",
                           "aten::nonzero_numpy",
                           "aten::where.default",
                           "aten::masked_select",
                           "aten::masked_scatter_backward",
                           "aten::bincount",
                           "aten::argwhere",
                           "aten::combinations",
                           "torchvision::nms",
                           "image::decode_gif",
                           "image::decode_image",
                           "image::decode_jpeg",
                           "image::decode_jpegs_cuda",
                           "image::decode_png",
                           "image::decode_webp",
                           "image::encode_jpeg",
                           "image::encode_jpegs_cuda",
                           "image::encode_png",
                           "image::read_file"}) {
    table[name].reason = DataDependentShape;
  }
  // Libraries that read a status word or sizes on the host, or rewrite a storage in place.
  for (const char* name : {"aten::_fused_moving_avg_obs_fq_helper",
                           "aten::_fused_moving_avg_obs_fq_helper_functional",
                           "fbgemm::dense_to_jagged",
                           "fbgemm::jagged_to_padded_dense",
                           "aten::_linalg_eigh",
                           "aten::_linalg_svd",
                           "aten::linalg_eig",
                           "aten::_linalg_eigvals",
                           "aten::linalg_lstsq",
                           "aten::_ctc_loss",
                           "aten::_ctc_loss_backward",
                           "aten::cholesky",
                           "aten::linalg_ldl_factor_ex",
                           "aten::linalg_ldl_solve",
                           "aten::linalg_lu",
                           "aten::linalg_lu_factor_ex",
                           "aten::linalg_matrix_exp",
                           "aten::matrix_exp",
                           "aten::matrix_exp_backward",
                           "aten::_lu_with_info",
                           "aten::segment_reduce",
                           "aten::_pack_padded_sequence",
                           "aten::_cudnn_init_dropout_state",
                           "aten::resize_",
                           "aten::set_",
                           "aten::set",
                           "aten::shallow_copy_data_",
                           "aten::resize_as_",
                           "aten::_lazy_clone",
                           "aten::sparse_csr_tensor",
                           "aten::sparse_csc_tensor",
                           "aten::sparse_bsr_tensor",
                           "aten::sparse_bsc_tensor",
                           "aten::sparse_compressed_tensor",
                           "aten::from_file",
                           "aten::ctc_loss",
                           "aten::linalg_cond",
                           "aten::linalg_eigh",
                           "aten::linalg_eigvals",
                           "aten::linalg_eigvalsh",
                           "aten::linalg_matrix_norm",
                           "aten::linalg_matrix_rank",
                           "aten::linalg_norm",
                           "aten::linalg_pinv",
                           "aten::linalg_svd",
                           "aten::linalg_svdvals",
                           "aten::nuclear_norm",
                           "aten::pinverse",
                           "aten::svd",
                           "prims::svd",
                           "debugprims::load_tensor",
                           "inductor::resize_storage_bytes_"}) {
    table[name].reason = UnsafeOperator;
  }
}

void addEffects(Table& table) {
  // What these do is repeated by a replay, or needs none.
  for (const char* name : {"aten::_assert_async", "aten::_assert_scalar", "aten::_print",
                           "aten::_assert_tensor_metadata", "aten::sym_constrain_range",
                           "aten::sym_constrain_range_for_size", "aten::_functional_assert_scalar",
                           "aten::warn", "prims::_sink_tokens"}) {
    table[name].effects = true;
  }
  // They set the generator that later draws use, or say on the host where it stands.
  for (const char* name :
       {"aten::manual_seed", "rngprims::philox_rand", "prims::inductor_rand_eager_offset",
        "prims::inductor_rand_eager_offsets"}) {
    table[name].random = true;
    table[name].reason = HostReason::UncapturableRng;
  }
  // aten/src/ATen/native/transformers/cuda/attention_backward.cu: they make the forward's dropout again.
  for (const char* name :
       {"aten::_scaled_dot_product_efficient_attention_backward",
        "aten::_scaled_dot_product_cudnn_attention_backward", "aten::_cudnn_attention_backward"}) {
    table[name].repeats = true;
  }
  // Python puts no tags on them.
  table["prims::inductor_seed"].random = table["prims::inductor_seeds"].random = true;
}

/// Compiled code that communicates (compiled_op.h): all its waits are in it.
void addCompiled(Table& table) {
  for (const char* name :
       {"gravure::compiled_communicating", "gravure::compiled_communicating_random"}) {
    table[name].collective = table[name].waitsInside = true;
  }
}

/// Products that communicate through a workspace in symmetric memory, and are done when they return. It is there
/// before a capture: the uncaptured run before has made it (torch/distributed/_symmetric_memory).
void addCommunicatingProducts(Table& table) {
  for (const char* name :
       {"symm_mem::fused_all_gather_matmul", "symm_mem::fused_all_gather_scaled_matmul",
        "symm_mem::fused_matmul_reduce_scatter", "symm_mem::fused_scaled_matmul_reduce_scatter"}) {
    table[name].waitsInside = true;
  }
}

/// Operators that give a number for a tensor without looking at its data. Any other one that takes
/// tensors and returns none is taken to wait for the device (op_facts.cpp).
void addMetadata(Table& table) {
  for (const char* name : {"aten::sym_size",
                           "aten::sym_stride",
                           "aten::sym_numel",
                           "aten::sym_storage_offset",
                           "aten::sym_is_contiguous",
                           "aten::size",
                           "aten::stride",
                           "aten::numel",
                           "aten::dim",
                           "aten::len",
                           "aten::storage_offset",
                           "aten::element_size",
                           "aten::get_device",
                           "aten::is_complex",
                           "aten::is_conj",
                           "aten::is_contiguous",
                           "aten::is_distributed",
                           "aten::is_floating_point",
                           "aten::is_inference",
                           "aten::is_leaf",
                           "aten::is_neg",
                           "aten::is_non_overlapping_and_dense",
                           "aten::is_same_size",
                           "aten::is_set_to",
                           "aten::is_signed",
                           "aten::is_strides_like_format",
                           "aten::output_nr",
                           "aten::retains_grad",
                           "aten::result_type",
                           "aten::dense_dim",
                           "aten::sparse_dim",
                           "aten::_dimI",
                           "aten::_dimV",
                           "aten::_version",
                           "aten::_is_zerotensor",
                           "aten::_debug_has_internal_overlap",
                           "aten::_fused_sdp_choice",
                           "aten::_has_compatible_shallow_copy_type",
                           "aten::_has_same_storage_numel",
                           "aten::cudnn_is_acceptable",
                           "prim::device",
                           "prim::dtype",
                           "prim::is_cpu",
                           "prim::is_cuda",
                           "prim::is_ipu",
                           "prim::is_maia",
                           "prim::is_meta",
                           "prim::is_mkldnn",
                           "prim::is_mps",
                           "prim::is_mtia",
                           "prim::is_nested",
                           "prim::is_quantized",
                           "prim::is_sparse",
                           "prim::is_sparse_csr",
                           "prim::is_vulkan",
                           "prim::is_xla",
                           "prim::is_xpu",
                           "prim::itemsize",
                           "prim::layout",
                           "prim::name",
                           "prim::nbytes",
                           "prim::requires_grad"}) {
    table[name].readsMetadata = true;
  }
  for (const char* name :
       {"aten::index", "aten::index_put", "aten::index_put_", "aten::one_hot",
        "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::repeat_interleave"}) {
    table[name].shapeDependsOnOperands = true;
  }
}

void addTransfers(Table& table) {
  table["ao::offload"].transfer = Transfer::ToHost;
  table["ao::reload"].transfer = Transfer::ToDevice;
  table["ao::wait_tensor"].transfer = Transfer::Wait;
}

const Table& table() {
  static const Table rows = [] {
    Table t;
    addAliases(t);
    addWrites(t);
    addReasons(t);
    addEffects(t);
    addMetadata(t);
    addCompiled(t);
    addCommunicatingProducts(t);
    addTransfers(t);
    return t;
  }();
  return rows;
}

/// Every operator of a communication namespace is a collective, but for the waits.
void readNamespace(std::string_view name, OpRow& row) {
  const std::string_view space = name.substr(0, name.find("::"));
  const bool functional = space == "_c10d_functional" || space == "c10d_functional" ||
                          space == "_c10d_functional_autograd";
  if (!functional && space != "c10d" && space != "symm_mem") return;
  const std::string_view op = name.substr(space.size() + 2);
  // Where it is traced, the wrapper of an asynchronous result waits.
  row.wait = op == "wait_tensor" || op == "_wrap_tensor_autograd";
  row.collective = !row.wait;
  if (functional || row.waitsInside) return;
  // Raw process-group operators return a Work that the host waits on, and mark none of their buffers.
  // Others of symmetric memory meet the other ranks on the host when their buffers are made.
  row.blocking = true;
  row.reason = HostReason::BlockingCollective;
  if (space == "c10d") row.writesAll = row.aliasesAll = true;
}

}  // namespace

OpRow opRow(std::string_view name, std::string_view overload) {
  const std::string full =
      std::string(name) + "." + std::string(overload.empty() ? "default" : overload);
  OpRow row;
  for (const std::string_view key : {std::string_view(full), name}) {
    const auto at = table().find(llvm::StringRef(key.data(), key.size()));
    if (at == table().end()) continue;
    row = at->second;
    break;
  }
  readNamespace(name, row);
  return row;
}

}  // namespace gravure

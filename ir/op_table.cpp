#include "ir/op_table.h"

#include <llvm/ADT/StringMap.h>

namespace gravure {
namespace {

constexpr uint64_t bits(std::initializer_list<int> positions) {
  uint64_t mask = 0;
  for (int position : positions) mask |= uint64_t{1} << position;
  return mask;
}

using Table = llvm::StringMap<OpRow>;

void addAliases(Table& table) {
  // Composite operators that hand out views without saying so (an autograd matter: "unsafe" means
  // that the view is not tracked).
  for (const char* name : {"aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_chunk",
                           "aten::unsafe_split_with_sizes", "_c10d_functional::wait_tensor"}) {
    table[name].aliasesFirst = true;
  }
  for (const char* name : {"aten::broadcast_tensors", "aten::meshgrid", "aten::einsum",
                           "aten::flatten_dense_tensors", "aten::unflatten_dense_tensors"}) {
    table[name].aliasesAll = true;
  }
}

void addWrites(Table& table) {
  // Batch norm writes running_mean and running_var in training; its schema is not marked.
  for (const char* name : {"aten::native_batch_norm", "aten::cudnn_batch_norm",
                           "aten::miopen_batch_norm", "aten::batch_norm", "aten::instance_norm"}) {
    table[name].writtenArgs = bits({3, 4});
  }
}

void addReasons(Table& table) {
  using enum HostReason;
  for (const char* name :
       {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal",
        "aten::allclose", "aten::Bool", "aten::Int", "aten::Float", "aten::_linalg_check_errors"}) {
    table[name].reason = HostSync;
  }
  for (const char* name : {"aten::_unique", "aten::_unique2", "aten::unique_dim",
                           "aten::unique_consecutive", "aten::nonzero_numpy", "aten::masked_select",
                           "aten::bincount", "aten::argwhere", "aten::combinations"}) {
    table[name].reason = DataDependentShape;
  }
  // Libraries that read a status word or sizes on the host, or rewrite a storage in place.
  for (const char* name :
       {"aten::_fused_moving_avg_obs_fq_helper", "aten::_fused_moving_avg_obs_fq_helper_functional",
        "fbgemm::dense_to_jagged", "fbgemm::jagged_to_padded_dense", "aten::_linalg_eigh",
        "aten::_linalg_svd", "aten::linalg_eig", "aten::_linalg_eigvals", "aten::linalg_lstsq",
        "aten::_ctc_loss", "aten::_pack_padded_sequence", "aten::_cudnn_init_dropout_state",
        "aten::resize_", "aten::set_", "aten::resize_as_"}) {
    table[name].reason = UnsafeOperator;
  }
}

void addEffects(Table& table) {
  for (const char* name : {"aten::_assert_async", "aten::_assert_scalar", "aten::_print",
                           "aten::_assert_tensor_metadata", "aten::sym_constrain_range",
                           "aten::sym_constrain_range_for_size", "aten::_functional_assert_scalar",
                           "prims::_sink_tokens"}) {
    table[name].effects = true;
  }
  for (const char* name :
       {"aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset",
        "aten::size", "aten::stride", "aten::numel", "aten::dim", "aten::len"}) {
    table[name].readsMetadata = true;
  }
  for (const char* name :
       {"aten::index", "aten::index_put", "aten::index_put_", "aten::one_hot",
        "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::repeat_interleave"}) {
    table[name].shapeDependsOnOperands = true;
  }
}

const Table& table() {
  static const Table rows = [] {
    Table t;
    addAliases(t);
    addWrites(t);
    addReasons(t);
    addEffects(t);
    return t;
  }();
  return rows;
}

/// Every operator of a communication namespace is a collective, but for the waits.
void readNamespace(std::string_view name, OpRow& row) {
  const std::string_view space = name.substr(0, name.find("::"));
  const bool functional = space == "_c10d_functional" || space == "c10d_functional" ||
                          space == "_c10d_functional_autograd";
  if (!functional && space != "c10d") return;
  const std::string_view op = name.substr(space.size() + 2);
  row.wait = op == "wait_tensor";
  row.collective = !row.wait;
  // Raw process-group operators return a Work that the host waits on.
  if (space == "c10d") {
    row.blocking = true;
    row.reason = HostReason::BlockingCollective;
  }
}

}  // namespace

OpRow opRow(std::string_view name) {
  OpRow row;
  if (auto at = table().find(llvm::StringRef(name.data(), name.size())); at != table().end()) {
    row = at->second;
  }
  readNamespace(name, row);
  return row;
}

}  // namespace gravure

#include "ir/memory/memory_map.h"

#include <llvm/Support/raw_ostream.h>

#include <algorithm>

namespace gravure {
namespace {

/// Counts, for each cell of a grid, the rectangles that touch it: marks at four corners, then sums.
class Coverage {
 public:
  Coverage(int columns, int rows)
      : columns_(columns), counts_(static_cast<size_t>(columns + 1) * (rows + 1), 0) {}

  /// Half-open.
  void add(int column, int columnEnd, int row, int rowEnd) {
    ++at(column, row);
    --at(columnEnd, row);
    --at(column, rowEnd);
    ++at(columnEnd, rowEnd);
  }
  void sum(int rows) {
    for (int r = 0; r <= rows; ++r) {
      for (int c = 1; c <= columns_; ++c) at(c, r) += at(c - 1, r);
    }
    for (int r = 1; r <= rows; ++r) {
      for (int c = 0; c <= columns_; ++c) at(c, r) += at(c, r - 1);
    }
  }
  int64_t& at(int column, int row) {
    return counts_[static_cast<size_t>(row) * (columns_ + 1) + column];
  }

 private:
  int columns_;
  std::vector<int64_t> counts_;
};

/// The cells [first, second) of `cells` that [begin, end) of [0, total) touches.
std::pair<int, int> cellsOf(int64_t begin, int64_t end, int64_t total, int cells) {
  const auto scaled = [&](int64_t x) {
    return static_cast<double>(x) * cells / static_cast<double>(total);
  };
  const int first = std::clamp(static_cast<int>(scaled(begin)), 0, cells - 1);
  const int last = std::clamp(static_cast<int>(scaled(end - 1)), first, cells - 1);
  return {first, last + 1};
}

}  // namespace

void printMemoryMap(const MemoryPlan& plan, llvm::raw_ostream& os, int columns, int rows) {
  const std::vector<Buffer>& buffers = plan.buffers;
  if (buffers.empty() || columns <= 0 || rows <= 0) return;
  int64_t first = buffers[0].begin, last = buffers[0].end;
  for (const Buffer& buffer : buffers) {
    first = std::min(first, buffer.begin);
    last = std::max(last, buffer.end);
  }
  columns = static_cast<int>(std::min<int64_t>(columns, last - first));
  Coverage coverage(columns, rows);
  for (const Buffer& buffer : buffers) {
    const auto [column, columnEnd] =
        cellsOf(buffer.begin - first, buffer.end - first, last - first, columns);
    const auto [row, rowEnd] =
        cellsOf(buffer.offset, buffer.offset + buffer.bytes, plan.bytes, rows);
    coverage.add(column, columnEnd, row, rowEnd);
  }
  coverage.sum(rows);
  for (int r = rows - 1; r >= 0; --r) {
    for (int c = 0; c < columns; ++c) os << (coverage.at(c, r) > 0 ? '#' : '.');
    os << '\n';
  }
}

}  // namespace gravure

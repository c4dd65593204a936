#pragma once
// Which arenas may lie on the same physical pages. No memory is touched here.
//
// A program's arena (a tenant) has addresses of its own, page by page backed by physical pages. What a
// program leaves behind after a step means nothing, but for the parts that somebody holds. So two
// arenas may share a page as long as no step of one runs while the other one's step runs or its part
// on that page is held. A step lives on what its entry uses: what the forward alone uses means nothing
// while the backward runs, unless it is held. Which programs live together is learned: where two do, a
// rule is kept that those parts are apart from then on. Rules are never dropped while both live, so that
// there is an end to moves.

#include <llvm/ADT/BitVector.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/SmallVector.h>

#include <array>
#include <cstdint>
#include <vector>

namespace gravure {

/// Parts of an arena, as bits.
using ArenaParts = uint8_t;
constexpr ArenaParts kNoPart = 0;
constexpr ArenaParts kSavedPart = 1;
constexpr ArenaParts kFirstResultsPart = 2;   // results of the program's first entry
constexpr ArenaParts kLaterResultsPart = 4;   // those of the others
constexpr ArenaParts kWholeArena = 8;         // on every page
constexpr ArenaParts kFirstEntryPart = 16;    // what a run of the first entry uses
constexpr ArenaParts kLaterEntriesPart = 32;  // what runs of the others use
constexpr size_t kPartKinds = 6;

constexpr ArenaParts partOfEntry(size_t entry) {
  return entry == 0 ? kFirstEntryPart : kLaterEntriesPart;
}
constexpr ArenaParts resultsOfEntry(size_t entry) {
  return entry == 0 ? kFirstResultsPart : kLaterResultsPart;
}

class PageSharing {
 public:
  using Tenant = int32_t;
  using Page = int32_t;
  static constexpr Page kNoPage = -1;

  /// One page of a tenant's addresses.
  struct Want {
    int64_t bytes = 0;
    ArenaParts parts = kNoPart;  // that lie on it
  };
  /// A tenant without pages.
  Tenant add(std::vector<Want> wants);
  /// It wants other pages from now on, and has none. Rules about it stay.
  void wantAnew(Tenant tenant, std::vector<Want> wants);
  /// Its pages lose a user; rules about it end.
  void remove(Tenant tenant);

  /// A physical page that nobody uses.
  Page addPage(int64_t bytes);
  /// Pages that nobody uses, ascending.
  std::vector<Page> unused() const;
  void removePage(Page page);

  /// From now on no page of `tenant`'s part `own` may be one of `other`'s `parts`. True if that was not
  /// a rule yet.
  bool keepApart(Tenant tenant, Tenant other, ArenaParts parts, ArenaParts own = kWholeArena);
  /// True if a page of `tenant`'s part `own` is one of `other`'s `parts`.
  bool meets(Tenant tenant, Tenant other, ArenaParts parts, ArenaParts own = kWholeArena) const;

  struct Move {
    size_t index = 0;     // of the tenant's pages
    Page page = kNoPage;  // where to; kNoPage: to a page that is still to be added
  };
  /// What must change for the tenant to have all its pages and keep all rules: lowest pages first, and
  /// as few as possible move. A page with one of the `held` parts stays; false if one breaks a rule.
  bool choose(Tenant tenant, ArenaParts held, std::vector<Move>& moves) const;
  void assign(Tenant tenant, size_t index, Page page);

  const std::vector<Page>& pagesOf(Tenant tenant) const { return tenants_[tenant].pages; }
  const std::vector<Want>& wantsOf(Tenant tenant) const { return tenants_[tenant].wants; }
  /// Bytes of all pages.
  int64_t bytes() const { return bytes_; }

 private:
  using PagesByPart = std::array<llvm::BitVector, kPartKinds>;
  using Rule = std::array<ArenaParts, kPartKinds>;  // by own part: the other one's
  struct State {
    bool alive = false;
    std::vector<Want> wants;
    std::vector<Page> pages;
    PagesByPart on;
    llvm::SmallDenseMap<Tenant, Rule> avoids;
  };
  struct Physical {
    int64_t bytes = 0;  // 0: no such page
    int32_t users = 0;
  };
  /// By part of the tenant's: pages that no page of that part may be.
  PagesByPart forbiddenFor(Tenant tenant) const;

  std::vector<State> tenants_;
  std::vector<Physical> pages_;
  int64_t bytes_ = 0;
};

}  // namespace gravure

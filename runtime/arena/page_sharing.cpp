#include "runtime/arena/page_sharing.h"

#include <c10/util/Exception.h>

#include <map>

namespace gravure {

/// Pages that a tenant's pages may not be, by what lies on them.
struct PageSharing::Forbidden {
  llvm::BitVector always, underSaved, underResults;

  bool operator()(Page page, ArenaParts parts) const {
    const auto in = [page](const llvm::BitVector& set) {
      return static_cast<size_t>(page) < set.size() && set.test(page);
    };
    return in(always) || ((parts & kSavedPart) && in(underSaved)) ||
           ((parts & kResultPart) && in(underResults));
  }
};

PageSharing::Tenant PageSharing::add(std::vector<Want> wants) {
  size_t at = 0;
  while (at < tenants_.size() && tenants_[at].alive) ++at;
  if (at == tenants_.size()) tenants_.emplace_back();
  State& state = tenants_[at];
  state = State();
  state.alive = true;
  state.pages.assign(wants.size(), kNoPage);
  state.wants = std::move(wants);
  return static_cast<Tenant>(at);
}

void PageSharing::wantAnew(Tenant tenant, std::vector<Want> wants) {
  State& state = tenants_[tenant];
  for (size_t i = 0; i < state.pages.size(); ++i) assign(tenant, i, kNoPage);
  state.pages.assign(wants.size(), kNoPage);
  state.wants = std::move(wants);
}

void PageSharing::remove(Tenant tenant) {
  for (size_t i = 0; i < tenants_[tenant].pages.size(); ++i) assign(tenant, i, kNoPage);
  tenants_[tenant] = State();
  for (State& other : tenants_) other.avoids.erase(tenant);
}

PageSharing::Page PageSharing::addPage(int64_t bytes) {
  size_t at = 0;
  while (at < pages_.size() && pages_[at].bytes > 0) ++at;
  if (at == pages_.size()) pages_.emplace_back();
  pages_[at] = {bytes, 0};
  bytes_ += bytes;
  return static_cast<Page>(at);
}

std::vector<PageSharing::Page> PageSharing::unused() const {
  std::vector<Page> found;
  for (size_t p = 0; p < pages_.size(); ++p) {
    if (pages_[p].bytes > 0 && pages_[p].users == 0) found.push_back(static_cast<Page>(p));
  }
  return found;
}

void PageSharing::removePage(Page page) {
  TORCH_INTERNAL_ASSERT(pages_[page].users == 0, "page ", page, " is in use");
  bytes_ -= pages_[page].bytes;
  pages_[page].bytes = 0;
}

bool PageSharing::keepApart(Tenant tenant, Tenant other, ArenaParts parts) {
  ArenaParts& known = tenants_[tenant].avoids[other];
  const bool fresh = (known | parts) != known;
  known |= parts;
  return fresh;
}

bool PageSharing::meets(Tenant tenant, Tenant other, ArenaParts parts) const {
  const State& a = tenants_[tenant];
  const State& b = tenants_[other];
  if (parts & kWholeArena) return a.all.anyCommon(b.all);
  return ((parts & kSavedPart) && a.all.anyCommon(b.saved)) ||
         ((parts & kResultPart) && a.all.anyCommon(b.results));
}

llvm::BitVector PageSharing::partsOf(const State& state, ArenaParts parts) const {
  if (parts & kWholeArena) return state.all;
  llvm::BitVector set;
  if (parts & kSavedPart) set |= state.saved;
  if (parts & kResultPart) set |= state.results;
  return set;
}

PageSharing::Forbidden PageSharing::forbiddenFor(Tenant tenant) const {
  Forbidden forbidden;
  for (const auto& [other, parts] : tenants_[tenant].avoids) {
    forbidden.always |= partsOf(tenants_[other], parts);
  }
  for (const State& other : tenants_) {
    const ArenaParts parts = other.avoids.lookup(tenant);
    if (parts & kWholeArena) forbidden.always |= other.all;
    if (parts & kSavedPart) forbidden.underSaved |= other.all;
    if (parts & kResultPart) forbidden.underResults |= other.all;
  }
  return forbidden;
}

bool PageSharing::choose(Tenant tenant, ArenaParts held, std::vector<Move>& moves) const {
  const State& state = tenants_[tenant];
  const Forbidden forbidden = forbiddenFor(tenant);
  moves.clear();
  llvm::BitVector taken(pages_.size());
  for (size_t i = 0; i < state.pages.size(); ++i) {
    const Page page = state.pages[i];
    if (page != kNoPage && !forbidden(page, state.wants[i].parts)) {
      taken.set(page);
      continue;
    }
    if (page != kNoPage && (state.wants[i].parts & held)) return false;
    moves.push_back({i, kNoPage});
  }
  // Pages only become taken, so for pages with the same needs the search goes on where it ended.
  std::map<std::pair<int64_t, ArenaParts>, size_t> from;
  for (Move& move : moves) {
    const Want& want = state.wants[move.index];
    size_t& p = from[{want.bytes, want.parts}];
    for (; p < pages_.size(); ++p) {
      const auto page = static_cast<Page>(p);
      if (pages_[p].bytes != want.bytes || taken.test(p) || forbidden(page, want.parts)) continue;
      taken.set(p);
      move.page = page;
      break;
    }
  }
  return true;
}

void PageSharing::assign(Tenant tenant, size_t index, Page page) {
  State& state = tenants_[tenant];
  const ArenaParts parts = state.wants[index].parts;
  const auto mark = [&](Page at, bool value) {
    for (auto [set, wanted] :
         {std::pair(&state.all, true), std::pair(&state.saved, (parts & kSavedPart) != 0),
          std::pair(&state.results, (parts & kResultPart) != 0)}) {
      if (!wanted) continue;
      if (set->size() < pages_.size()) set->resize(pages_.size());
      set->operator[](at) = value;
    }
  };
  if (const Page old = state.pages[index]; old != kNoPage) {
    --pages_[old].users;
    mark(old, false);
  }
  state.pages[index] = page;
  if (page == kNoPage) return;
  TORCH_INTERNAL_ASSERT(pages_[page].bytes == state.wants[index].bytes, "page ", page,
                        " is of another size");
  ++pages_[page].users;
  mark(page, true);
}

}  // namespace gravure

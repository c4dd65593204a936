#include "runtime/arena/page_sharing.h"

#include <c10/util/Exception.h>

#include <map>

namespace gravure {

namespace {

bool has(const llvm::BitVector& set, PageSharing::Page page) {
  return static_cast<size_t>(page) < set.size() && set.test(page);
}

template <typename Visit>
void forEachPart(ArenaParts parts, const Visit& visit) {
  for (size_t part = 0; part < kPartKinds; ++part) {
    if (parts >> part & 1) visit(part);
  }
}

}  // namespace

PageSharing::Tenant PageSharing::add(std::vector<Want> wants) {
  size_t at = 0;
  while (at < tenants_.size() && tenants_[at].alive) ++at;
  if (at == tenants_.size()) tenants_.emplace_back();
  State& state = tenants_[at];
  state = State();
  state.alive = true;
  state.pages.assign(wants.size(), kNoPage);
  state.wants = std::move(wants);
  for (Want& want : state.wants) want.parts |= kWholeArena;
  return static_cast<Tenant>(at);
}

void PageSharing::wantAnew(Tenant tenant, std::vector<Want> wants) {
  State& state = tenants_[tenant];
  for (size_t i = 0; i < state.pages.size(); ++i) assign(tenant, i, kNoPage);
  state.pages.assign(wants.size(), kNoPage);
  state.wants = std::move(wants);
  for (Want& want : state.wants) want.parts |= kWholeArena;
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

bool PageSharing::keepApart(Tenant tenant, Tenant other, ArenaParts parts, ArenaParts own) {
  Rule& rule = tenants_[tenant].avoids[other];
  bool fresh = false;
  forEachPart(own, [&](size_t part) {
    fresh |= (rule[part] | parts) != rule[part];
    rule[part] |= parts;
  });
  return fresh;
}

bool PageSharing::meets(Tenant tenant, Tenant other, ArenaParts parts, ArenaParts own) const {
  bool found = false;
  forEachPart(own, [&](size_t mine) {
    forEachPart(parts, [&](size_t theirs) {
      found = found || tenants_[tenant].on[mine].anyCommon(tenants_[other].on[theirs]);
    });
  });
  return found;
}

PageSharing::PagesByPart PageSharing::forbiddenFor(Tenant tenant) const {
  PagesByPart forbidden;
  for (const auto& [other, rule] : tenants_[tenant].avoids) {
    const PagesByPart& on = tenants_[other].on;
    for (size_t mine = 0; mine < kPartKinds; ++mine) {
      forEachPart(rule[mine], [&](size_t theirs) { forbidden[mine] |= on[theirs]; });
    }
  }
  for (const State& other : tenants_) {
    const auto rule = other.avoids.find(tenant);
    if (rule == other.avoids.end()) continue;
    for (size_t theirs = 0; theirs < kPartKinds; ++theirs) {
      forEachPart(rule->second[theirs], [&](size_t mine) { forbidden[mine] |= other.on[theirs]; });
    }
  }
  return forbidden;
}

bool PageSharing::choose(Tenant tenant, ArenaParts held, std::vector<Move>& moves) const {
  const State& state = tenants_[tenant];
  const PagesByPart by = forbiddenFor(tenant);
  const auto forbidden = [&](Page page, ArenaParts parts) {
    bool found = false;
    forEachPart(parts, [&](size_t part) { found = found || has(by[part], page); });
    return found;
  };
  moves.clear();
  bool kept = true;
  llvm::BitVector taken(pages_.size());
  for (size_t i = 0; i < state.pages.size(); ++i) {
    const Page page = state.pages[i];
    const bool breaks = page != kNoPage && forbidden(page, state.wants[i].parts);
    if (page == kNoPage || (breaks && !(state.wants[i].parts & held))) {
      moves.push_back({i, kNoPage});
      continue;
    }
    taken.set(page);
    kept &= !breaks;
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
  return kept;
}

void PageSharing::assign(Tenant tenant, size_t index, Page page) {
  State& state = tenants_[tenant];
  const ArenaParts parts = state.wants[index].parts;
  const auto mark = [&](Page at, bool value) {
    forEachPart(parts, [&](size_t part) {
      llvm::BitVector& set = state.on[part];
      if (set.size() < pages_.size()) set.resize(pages_.size());
      set[at] = value;
    });
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

// Which arenas may lie on the same pages, and the memory that they take so.
#include "runtime/arena/arena_pages.h"
#include "runtime/arena/page_sharing.h"
#include "runtime/results/results.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>

using namespace gravure;
using Want = PageSharing::Want;
using Move = PageSharing::Move;

namespace {

std::vector<Want> plain(size_t pages, ArenaParts parts = kNoPart) {
  return std::vector<Want>(pages, Want{4096, parts});
}

/// Gives a tenant its pages, adding those that are missing. False if it may not move.
bool placePages(PageSharing& sharing, PageSharing::Tenant tenant, ArenaParts held = kNoPart) {
  std::vector<Move> moves;
  if (!sharing.choose(tenant, held, moves)) return false;
  for (const Move& move : moves) {
    const auto page = move.page != PageSharing::kNoPage ? move.page : sharing.addPage(4096);
    sharing.assign(tenant, move.index, page);
  }
  return true;
}

}  // namespace

TEST_CASE("programs that never live together lie on the same pages") {
  PageSharing sharing;
  const auto small = sharing.add(plain(3)), large = sharing.add(plain(8));
  REQUIRE(placePages(sharing, small));
  REQUIRE(placePages(sharing, large));
  CHECK(sharing.bytes() == 8 * 4096);
  CHECK(sharing.meets(small, large, kWholeArena));
  sharing.remove(large);
  CHECK(sharing.unused().size() == 5);
}

TEST_CASE("what is held keeps its pages, and only those") {
  PageSharing sharing;
  auto wants = plain(6);
  for (size_t i : {0, 1, 4}) wants[i].parts = kSavedPart;
  const auto first = sharing.add(wants), second = sharing.add(plain(6));
  REQUIRE(placePages(sharing, first));
  CHECK(sharing.keepApart(second, first, kSavedPart));
  CHECK_FALSE(sharing.keepApart(second, first, kSavedPart));
  REQUIRE(placePages(sharing, second));
  CHECK(sharing.bytes() == 9 * 4096);
  CHECK_FALSE(sharing.meets(second, first, kSavedPart));
  CHECK(sharing.meets(second, first, kWholeArena));
}

TEST_CASE("a rule moves the pages that break it, and none that is held") {
  PageSharing sharing;
  auto wants = plain(4);
  wants[0].parts = kSavedPart;
  const auto a = sharing.add(wants), b = sharing.add(wants);
  REQUIRE(placePages(sharing, a));
  REQUIRE(placePages(sharing, b));
  CHECK(sharing.bytes() == 4 * 4096);
  sharing.keepApart(a, b, kSavedPart);
  CHECK_FALSE(placePages(sharing, a, kSavedPart));  // its own saved page would move
  REQUIRE(placePages(sharing, a));
  CHECK(sharing.bytes() == 5 * 4096);
  // The other way round, the rule stands too: b's saved page stays away from all of a's.
  REQUIRE(placePages(sharing, b));
  CHECK_FALSE(sharing.meets(a, b, kSavedPart));
  sharing.keepApart(b, a, kWholeArena);
  REQUIRE(placePages(sharing, b));
  CHECK_FALSE(sharing.meets(a, b, kWholeArena));
}

TEST_CASE("rules about a tenant end with it, and its number is used again") {
  PageSharing sharing;
  const auto a = sharing.add(plain(2)), b = sharing.add(plain(2));
  sharing.keepApart(a, b, kWholeArena);
  REQUIRE(placePages(sharing, a));
  REQUIRE(placePages(sharing, b));
  CHECK(sharing.bytes() == 4 * 4096);
  sharing.remove(b);
  for (PageSharing::Page page : sharing.unused()) sharing.removePage(page);
  const auto c = sharing.add(plain(2));
  CHECK(c == b);
  REQUIRE(placePages(sharing, c));
  CHECK(sharing.bytes() == 2 * 4096);
}

namespace {

/// Memory of a device that is only counted. Streams are numbered; what is ordered after what is noted.
class CountedSource final : public PageSource {
 public:
  int64_t largePage() const override { return 4 * 4096; }
  int64_t smallPage() const override { return 4096; }
  Addresses reserve() override {
    return {reinterpret_cast<char*>(int64_t{1} << 40), int64_t{64} << 28};
  }
  std::vector<PageHandle> create(const std::vector<int64_t>& sizes) override {
    int64_t wanted = 0;
    for (int64_t size : sizes) wanted += size;
    TORCH_CHECK(created + wanted <= limit, created + wanted - limit, " bytes are missing");
    created += wanted;
    std::vector<PageHandle> handles;
    for (size_t i = 0; i < sizes.size(); ++i) handles.push_back(++last);
    return handles;
  }
  void destroy(PageHandle, int64_t bytes) override { created -= bytes; }
  void map(const std::vector<Piece>& pieces) override {
    for (const Piece& piece : pieces) CHECK(mapped.emplace(piece.at, piece).second);
  }
  void unmap(char* at, int64_t bytes) override {
    REQUIRE(mapped.count(at) == 1);
    CHECK(mapped[at].bytes == bytes);
    mapped.erase(at);
  }
  c10::Stream currentStream() const override { return streamOf(stream); }
  bool order(c10::Stream earlier, c10::Stream later) override {
    if (captured.count(earlier.id()) != 0) return false;
    ordered.emplace_back(earlier.id(), later.id());
    return true;
  }
  void finish(const std::vector<c10::Stream>& streams) override {
    for (c10::Stream each : streams) finished.push_back(each.id());
  }
  /// Done when `busy` no longer names one of its streams.
  std::unique_ptr<Work> work(const std::vector<c10::Stream>& streams) override {
    struct Counted final : Work {
      const CountedSource& source;
      std::vector<c10::Stream> streams;
      Counted(const CountedSource& source, std::vector<c10::Stream> streams)
          : source(source), streams(std::move(streams)) {}
      bool isDone() noexcept override {
        return std::none_of(streams.begin(), streams.end(),
                            [this](c10::Stream each) { return source.busy.count(each.id()) > 0; });
      }
      bool wait() noexcept override { return source.mayWait; }
    };
    return std::make_unique<Counted>(*this, streams);
  }
  static c10::Stream streamOf(int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCPU), id);
  }
  /// Handles behind an arena's addresses.
  std::set<PageHandle> behind(const Slab& slab) const {
    std::set<PageHandle> found;
    for (const auto& [at, piece] : mapped) {
      if (at >= slab.base() && at < slab.base() + slab.bytes()) found.insert(piece.handle);
    }
    return found;
  }

  int64_t limit = int64_t{1} << 30, created = 0, stream = 0;
  PageHandle last = 0;
  std::map<char*, Piece> mapped;
  std::vector<std::pair<int64_t, int64_t>> ordered;
  std::set<int64_t> captured;  // streams, by other code
  std::vector<int64_t> finished;
  std::set<int64_t> busy;
  bool mayWait = true;
};

struct Counted {
  CountedSource* source = new CountedSource();
  ArenaPages pages{std::unique_ptr<PageSource>(source)};
  std::map<PageHandle, int64_t> written;  // by page: the run that wrote there last
  int64_t runs = 0;
};

ArenaShape shapeOf(int64_t pages) {
  ArenaShape shape;
  shape.bytes = pages * 4096;
  return shape;
}

bool enter(Slab& slab) {
  std::string why;
  const bool entered = slab.enter(0, why);
  CHECK(entered == why.empty());
  return entered;
}

bool disjoint(const std::set<PageHandle>& a, const std::set<PageHandle>& b) {
  return std::none_of(a.begin(), a.end(), [&](PageHandle each) { return b.count(each) > 0; });
}

}  // namespace

TEST_CASE("arenas at rest take the memory of the largest one, which goes with the last") {
  Counted device;
  auto a = device.pages.make(shapeOf(9)), b = device.pages.make(shapeOf(30));
  CHECK(a->base() != b->base());
  CHECK(device.pages.bytes() == 30 * 4096);
  for (int step = 0; step < 3; ++step) {
    for (Slab* slab : {a.get(), b.get()}) {
      REQUIRE(enter(*slab));
      slab->leave();
    }
  }
  CHECK(device.source->finished.empty());
  b.reset();
  CHECK(device.pages.bytes() == 9 * 4096);
  a.reset();
  CHECK(device.source->created == 0);
  CHECK(device.source->mapped.empty());
  CHECK(device.pages.arenas() == 0);
}

TEST_CASE("an arena that is used while another one's step runs gets pages of its own") {
  Counted device;
  auto a = device.pages.make(shapeOf(5)), b = device.pages.make(shapeOf(5));
  const auto before = device.source->behind(*b);
  REQUIRE(enter(*a));
  REQUIRE(enter(*b));
  CHECK(disjoint(device.source->behind(*a), device.source->behind(*b)));
  CHECK(before != device.source->behind(*b));
  a->leave();
  b->leave();
  const auto mapped = device.source->mapped.size();
  for (int step = 0; step < 5; ++step) {
    REQUIRE(enter(*b));
    REQUIRE(enter(*a));
    a->leave();
    b->leave();
  }
  CHECK(device.source->mapped.size() == mapped);
}

TEST_CASE("an arena takes the pages that it is given, behind the work that was on them") {
  using Order = std::vector<std::pair<int64_t, int64_t>>;
  Counted device;
  device.source->stream = 2;
  auto before = device.pages.make(shapeOf(8));
  REQUIRE(enter(*before));
  before->leave();
  device.pages.releaseAtRest();
  REQUIRE(device.source->created == 0);
  device.source->created = 3 * 4 * 4096;  // what a warm-up left
  device.source->stream = 1;
  auto a = device.pages.make(shapeOf(9), {101, 102, 103});
  CHECK(device.source->created == 9 * 4096);  // one page more, and one given page went
  auto behind = device.source->behind(*a);
  CHECK(behind.erase(101) + behind.erase(102) == 2);
  CHECK(behind.size() == 1);
  device.source->stream = 2;
  SECTION("its own step") { REQUIRE(enter(*a)); }
  SECTION("a step of another arena on the same pages") {
    REQUIRE(enter(*before));
    CHECK(device.source->behind(*before) == std::set<PageHandle>{101, 102});
  }
  CHECK(device.source->ordered == Order{{1, 2}});
}

TEST_CASE("the first step on given pages comes after older work on the pages beside them") {
  using Order = std::vector<std::pair<int64_t, int64_t>>;
  Counted device;
  device.source->stream = 2;
  auto older = device.pages.make(shapeOf(8));
  REQUIRE(enter(*older));
  older->leave();
  device.source->created += 4 * 4096;
  device.source->stream = 1;
  auto a = device.pages.make(shapeOf(12), {101});  // two of the older one's, and the given one
  REQUIRE(device.source->behind(*a).count(101) == 1);
  REQUIRE_FALSE(disjoint(device.source->behind(*a), device.source->behind(*older)));
  REQUIRE(enter(*a));
  CHECK(device.source->ordered == Order{{2, 1}});
}

TEST_CASE("what each of several arenas holds costs the others no more than its own pages") {
  Counted device;
  ArenaShape holding = shapeOf(12);
  holding.saved = {{0, 5 * 4096}};  // a large page, and one page of the next
  holding.amongMany = true;
  std::vector<float> memory(4);
  std::vector<std::shared_ptr<Slab>> arenas;
  std::vector<at::Tensor> lent;
  for (int i = 0; i < 6; ++i) {
    holding.savedBook = std::make_shared<LoanBook>();
    arenas.push_back(device.pages.make(holding));
    REQUIRE(enter(*arenas.back()));
    arenas.back()->leave();
    const at::Tensor saved = at::from_blob(memory.data(), {4});
    lent.push_back(Lender(arenas.back()).lend(saved, holding.savedBook));
  }
  CHECK(device.pages.bytes() == (6 * 5 + 7) * 4096);
}

TEST_CASE("what one of many arenas uses for a while lies where others hold something later") {
  Counted device;
  ArenaShape first = shapeOf(12), layer = shapeOf(3);
  first.saved = {{0, 4 * 4096}};
  first.used = {{{0, 4 * 4096}}, {{0, 12 * 4096}}};
  layer.saved = {{0, 3 * 4096}};
  layer.used = {{{0, 3 * 4096}}, {{0, 3 * 4096}}};
  std::vector<ArenaShape> shapes(5, layer);
  shapes[0] = first;
  std::vector<std::shared_ptr<Slab>> arenas;
  for (ArenaShape& shape : shapes) {
    shape.amongMany = true;
    shape.savedBook = std::make_shared<LoanBook>();
    arenas.push_back(device.pages.make(shape));
  }
  std::vector<float> memory(4);
  std::string why;
  for (int step = 0; step < 3; ++step) {
    std::vector<at::Tensor> lent;
    for (size_t i = 0; i < arenas.size(); ++i) {
      REQUIRE(arenas[i]->enter(0, why));
      arenas[i]->leave();
      const at::Tensor saved = at::from_blob(memory.data(), {4});
      lent.push_back(Lender(arenas[i]).lend(saved, shapes[i].savedBook));
    }
    for (size_t i = arenas.size(); i-- > 0;) {
      REQUIRE(arenas[i]->enter(1, why));
      lent.pop_back();
      arenas[i]->leave();
    }
  }
  CHECK(device.pages.bytes() == (4 + 4 * 3) * 4096);  // the first one's other eight are the layers'
}

TEST_CASE("a step on pages that have moved comes after older work on those that came") {
  using Order = std::vector<std::pair<int64_t, int64_t>>;
  Counted device;
  ArenaShape holding = shapeOf(4);
  holding.results = {{{0, 4 * 4096}}};
  holding.resultBooks = {{std::make_shared<LoanBook>()}};
  auto a = device.pages.make(shapeOf(4)), holds = device.pages.make(holding);
  device.source->stream = 1;
  auto other = device.pages.make(shapeOf(8));  // on their page, and one more
  REQUIRE(enter(*other));
  other->leave();
  device.source->stream = 2;
  std::vector<float> memory(4);
  at::Tensor lent;
  for (Slab* each : {a.get(), holds.get()}) {
    REQUIRE(enter(*each));
    each->leave();
  }
  device.source->stream = 2;
  lent = Lender(holds).lend(at::from_blob(memory.data(), {4}), holding.resultBooks[0][0]);
  device.source->ordered.clear();
  const auto before = device.source->behind(*a);
  REQUIRE(enter(*a));  // moves away from what is held, to the other one's second page
  REQUIRE(disjoint(device.source->behind(*a), before));
  REQUIRE_FALSE(disjoint(device.source->behind(*a), device.source->behind(*other)));
  CHECK(device.source->ordered == Order{{1, 2}});
}

TEST_CASE(
    "law 12: a step does not come behind a stream that other code captures, and waits for none") {
  using Order = std::vector<std::pair<int64_t, int64_t>>;
  Counted device;
  auto a = device.pages.make(shapeOf(8)), b = device.pages.make(shapeOf(8));
  device.source->stream = 1;
  REQUIRE(enter(*a));
  a->leave();
  device.source->stream = 2;
  device.source->captured = {1};
  std::string why;
  SECTION("of a step on the same pages") { CHECK_FALSE(b->enter(0, why)); }
  SECTION("of its own last step") {
    CHECK_FALSE(a->enter(0, why));
    CHECK_THROWS_WITH(a->follow(), Catch::Contains("end the capture first"));
  }
  CHECK_THAT(why, Catch::Contains("is being captured by other code"));
  CHECK(device.source->ordered.empty());
  device.source->captured.clear();
  REQUIRE(enter(*b));  // the next step has them again
  CHECK(device.source->ordered == Order{{1, 2}});
}

TEST_CASE("an arena that goes waits for nothing, and others have its pages behind its work") {
  using Order = std::vector<std::pair<int64_t, int64_t>>;
  Counted device;
  device.source->stream = 1;
  auto a = device.pages.make(shapeOf(8));
  REQUIRE(enter(*a));
  a->leave();
  device.source->busy = {1};
  a.reset();
  CHECK(device.source->finished.empty());
  CHECK(device.pages.bytes() == 8 * 4096);  // work is still going on there
  CHECK(device.source->mapped.size() == 2);
  device.source->stream = 2;
  auto b = device.pages.make(shapeOf(8));
  CHECK(device.pages.bytes() == 8 * 4096);
  REQUIRE(enter(*b));
  CHECK(device.source->ordered == Order{{1, 2}});
  CHECK(device.source->mapped.size() == 4);
  b->leave();
  SECTION("a later step finds that the work is done") {
    device.source->busy.clear();
    REQUIRE(enter(*b));
    CHECK(device.source->mapped.size() == 2);
    CHECK(device.pages.arenas() == 1);
    b->leave();
  }
  SECTION("whoever asks for memory waits for it") {
    CHECK(device.pages.releaseAtRest() == 8 * 4096);
    CHECK(device.source->mapped.empty());
    CHECK(device.pages.arenas() == 1);
  }
  SECTION("but not while a stream is being captured") {
    device.source->mayWait = false;
    CHECK(device.pages.releaseAtRest() == 0);
    CHECK(device.source->mapped.size() == 2);
    CHECK(device.pages.arenas() == 2);
  }
}

TEST_CASE("pages given for an arena that cannot be made are not kept") {
  Counted device;
  device.source->created = 4 * 4096;
  device.source->limit = 6 * 4096;
  SECTION("no memory") {
    CHECK_THROWS_WITH(device.pages.make(shapeOf(9), {101}), Catch::Contains("bytes are missing"));
  }
  SECTION("no addresses") {
    const auto tooMany = (int64_t{64} << 28) / 4096 + 1;
    CHECK_THROWS_WITH(device.pages.make(shapeOf(tooMany), {101}), Catch::Contains("no addresses"));
  }
  CHECK(device.source->created == 0);
  CHECK(device.pages.bytes() == 0);
}

TEST_CASE("static results keep their pages from every other arena") {
  Counted device;
  ArenaShape shape = shapeOf(8);
  shape.results = {{{0, 100}, {5000, 6000}}};
  shape.resultsStay = true;
  auto a = device.pages.make(shape), b = device.pages.make(shapeOf(8));
  CHECK_FALSE(a->mayHaveChanged());
  CHECK(b->mayHaveChanged());
  // The first large page holds both; the second one is shared.
  CHECK(device.pages.bytes() == 12 * 4096);
}

TEST_CASE("a step on another stream comes after those that used its pages") {
  Counted device;
  auto a = device.pages.make(shapeOf(4)), b = device.pages.make(shapeOf(4));
  const auto step = [&](Slab& slab, int64_t stream) {
    device.source->stream = stream;
    device.source->ordered.clear();
    REQUIRE(enter(slab));
    slab.leave();
    return device.source->ordered;
  };
  using Order = std::vector<std::pair<int64_t, int64_t>>;
  CHECK(step(*a, 1).empty());
  CHECK(step(*b, 1).empty());
  CHECK(step(*b, 2) == Order{{1, 2}});
  CHECK(step(*a, 2) == Order{{1, 2}});  // its own last step; b's was on this stream
  CHECK(step(*a, 3) == Order{{2, 3}});
  device.pages.readOn(a->base(), CountedSource::streamOf(7));
  CHECK(step(*b, 2) == Order{{3, 2}, {7, 2}});
  CHECK(step(*a, 2) == Order{{3, 2}, {7, 2}});
  CHECK(step(*a, 2).empty());
}

TEST_CASE("a step comes after what read values that were lent from outside its arena", "[law5]") {
  Counted device;
  ArenaShape shape = shapeOf(4);
  shape.savedBook = std::make_shared<LoanBook>();
  auto a = device.pages.make(shape);
  std::vector<float> beside(4);  // as a graph allocates, whose next replay writes it
  at::Tensor lent = Lender(a).lend(at::from_blob(beside.data(), {4}), shape.savedBook);
  REQUIRE(noteReader(lent.storage().data_ptr(), CountedSource::streamOf(7)));
  lent = at::Tensor();
  device.source->stream = 1;
  REQUIRE(enter(*a));
  a->leave();
  CHECK(device.source->ordered == std::vector<std::pair<int64_t, int64_t>>{{7, 1}});
  REQUIRE(enter(*a));
  a->leave();
  CHECK(device.source->ordered.size() == 1);
}

TEST_CASE("without memory a step does not enter, and it is tried again later") {
  Counted device;
  auto a = device.pages.make(shapeOf(5)), b = device.pages.make(shapeOf(5));
  device.source->limit = 6 * 4096;
  REQUIRE(enter(*a));
  std::string why;
  CHECK_FALSE(b->enter(0, why));
  CHECK_THAT(why, Catch::Contains("16384 bytes are missing"));
  CHECK_FALSE(b->enter(0, why));
  a->leave();
  device.source->limit = 60 * 4096;
  int tries = 0;
  while (!b->enter(0, why)) REQUIRE(++tries < 20);
  b->leave();
  CHECK_THROWS_WITH(device.pages.make(shapeOf(100)), Catch::Contains("are missing"));
  CHECK(device.pages.arenas() == 2);
}

TEST_CASE("what is held has its pages to itself, and a rule costs no step while nobody meets") {
  Counted device;
  ArenaShape saving = shapeOf(8), returning = shapeOf(8);
  saving.saved = {{0, 100}};  // on the first of two large pages
  saving.savedBook = std::make_shared<LoanBook>();
  returning.results = {{{7 * 4096, 8 * 4096}}};  // on the second
  auto a = device.pages.make(saving), b = device.pages.make(returning);
  CHECK(device.pages.bytes() == 8 * 4096);

  REQUIRE(enter(*a));
  at::Tensor lent = Lender(a).lend(at::from_blob(a->base(), {25}), saving.savedBook);
  a->leave();
  CHECK_FALSE(a->mayHaveChanged());
  device.source->limit = 12 * 4096;
  REQUIRE(enter(*b));
  CHECK(device.pages.bytes() == 12 * 4096);  // the first page is a's alone
  b->leave();

  // a's backward comes when what b returned may be held: they are to be apart, and there is no memory.
  const auto before = device.source->behind(*a);
  REQUIRE(enter(*a));
  CHECK(device.source->behind(*a) == before);
  a->leave();
  CHECK(b->mayHaveChanged());
  lent = at::Tensor();
  CHECK(a->mayHaveChanged());
  CHECK(device.pages.releaseAtRest() == 12 * 4096);
}

TEST_CASE("what the forward alone uses may lie on what another program held then", "[memory]") {
  Counted device;
  ArenaShape model = shapeOf(8), loss = shapeOf(12);
  model.saved = {{0, 4 * 4096}};
  model.results = {{{4 * 4096, 8 * 4096}}};  // the scores, which its backward does not use
  model.used = {{{0, 8 * 4096}}, {{0, 4 * 4096}}};
  model.savedBook = std::make_shared<LoanBook>();
  model.resultBooks = {{std::make_shared<LoanBook>()}};
  loss.used = {{{0, 4 * 4096}}, {{0, 12 * 4096}}};
  auto a = device.pages.make(model);
  std::set<PageHandle> before;
  std::shared_ptr<Slab> b;
  std::string why;
  for (int step = 0; step < 4; ++step) {
    CAPTURE(step);
    REQUIRE(a->enter(0, why));
    at::Tensor saved = Lender(a).lend(at::from_blob(a->base(), {25}), model.savedBook);
    at::Tensor scores =
        Lender(a).lend(at::from_blob(a->base() + 4 * 4096, {25}), model.resultBooks[0][0]);
    a->leave();
    if (!b) b = device.pages.make(loss);
    const std::set<PageHandle> held = device.source->behind(*a);
    REQUIRE(b->enter(0, why));
    CHECK(device.source->behind(*a) == held);
    CHECK(device.pages.bytes() <= 16 * 4096);
    b->leave();
    scores = at::Tensor();
    REQUIRE(b->enter(1, why));
    b->leave();
    REQUIRE(a->enter(1, why));
    a->leave();
    saved = at::Tensor();
    if (step == 2) before = device.source->behind(*b);
  }
  CHECK(device.source->behind(*b) == before);
  CHECK(device.pages.bytes() == 16 * 4096);  // 4 saved, and all of the loss'
}

TEST_CASE("an entry comes after what was read on another stream while an earlier entry ran",
          "[law5][memory]") {
  Counted device;
  ArenaShape model = shapeOf(8), loss = shapeOf(12);
  model.results = {{{0, 8 * 4096}}};
  model.resultBooks = {{std::make_shared<LoanBook>()}};
  loss.used = {{{0, 4 * 4096}}, {{0, 12 * 4096}}};
  auto a = device.pages.make(model), b = device.pages.make(loss);
  std::string why;
  const auto run = [&](Slab& slab, size_t entry, int64_t stream) {
    device.source->stream = stream;
    device.source->ordered.clear();
    REQUIRE(slab.enter(entry, why));
    slab.leave();
  };
  for (int step = 0; step < 3; ++step) {
    CAPTURE(step);
    run(*a, 0, 1);
    at::Tensor result = Lender(a).lend(at::from_blob(a->base(), {25}), model.resultBooks[0][0]);
    run(*b, 0, 2);
    result = at::Tensor();  // read on stream 1, which may still be at it
    run(*b, 1, 2);
    REQUIRE(!disjoint(device.source->behind(*a), device.source->behind(*b)));
    CHECK(llvm::is_contained(device.source->ordered, std::pair<int64_t, int64_t>(1, 2)));
  }
}

TEST_CASE("memory that rests is given back, and comes again at the same addresses") {
  Counted device;
  ArenaShape shape = shapeOf(8);
  shape.results = {{{0, 100}}};
  shape.resultsStay = true;
  auto a = device.pages.make(shape), b = device.pages.make(shapeOf(20));
  const char* const base = b->base();
  CHECK(device.pages.releaseAtRest() > 0);
  CHECK(device.pages.bytes() == 4 * 4096);  // of the static result
  CHECK(device.source->behind(*b).empty());
  REQUIRE(enter(*b));
  CHECK(b->base() == base);
  CHECK(device.source->behind(*b).size() == 5);
  CHECK(device.pages.releaseAtRest() == 0);  // nothing of what runs
  CHECK(device.source->behind(*b).size() == 5);
  b->leave();
}

TEST_CASE("a tensor keeps its arena by its address") {
  Counted device;
  auto a = device.pages.make(shapeOf(4));
  char* const base = a->base();
  device.pages.retain(base + 100);
  a.reset();
  CHECK(device.pages.arenas() == 1);
  CHECK(device.pages.contains(base));
  CHECK(device.pages.arenaAt(base + 100).end - device.pages.arenaAt(base + 100).begin == 4 * 4096);
  device.pages.release(base + 100);
  CHECK(device.pages.arenas() == 0);
}

namespace {

/// One arena of a program of two entries, of which a loop holds this and that. A page's content is told by a
/// number: of the run that wrote there last.
class DrawnArena {
 public:
  DrawnArena(Counted& device, std::mt19937& random) : device_(device), random_(random) {
    constexpr int64_t kPages = 12;
    shape_ = shapeOf(kPages);
    shape_.savedBook = std::make_shared<LoanBook>();
    shape_.results.resize(2);
    shape_.used.resize(2);
    shape_.resultBooks.resize(2);
    for (int64_t page = 0; page < kPages; ++page) {
      const Extent all{page * 4096, (page + 1) * 4096};
      const bool isSaved = chance(4);
      if (isSaved) shape_.saved.push_back(all);
      for (size_t entry : {0, 1}) {
        const bool isResult = !isSaved && chance(4);
        if (isResult) {
          shape_.results[entry].push_back(all);
          shape_.resultBooks[entry].push_back(std::make_shared<LoanBook>());
          results_[entry].emplace_back();
        }
        if (isSaved || isResult || chance(3)) shape_.used[entry].push_back(all);
      }
    }
    slab_ = device.pages.make(shape_);
  }

  /// Runs the backward where a forward has run, else the forward.
  void run() {
    const size_t entry = saved_.empty() ? 0 : 1;
    std::string why;
    const bool entered = slab_->enter(entry, why);
    CAPTURE(why);
    REQUIRE(entered);
    for (const Extent& extent : shape_.used[entry]) {
      if (!isHeld(extent)) device_.written[pageAt(extent)] = ++device_.runs;
    }
    if (entry == 0) {
      for (const Extent& extent : shape_.saved) saved_.push_back(hold(extent, shape_.savedBook));
    }
    for (size_t r = 0; r < results_[entry].size(); ++r) {
      const Extent& extent = shape_.results[entry][r];
      if (chance(2) && !isHeld(extent))
        results_[entry][r] = hold(extent, shape_.resultBooks[entry][r]);
    }
    slab_->leave();
    if (entry == 1) saved_.clear();
  }
  void dropResults() {
    for (auto& each : results_) {
      for (Held& held : each) {
        if (chance(2)) held = {};
      }
    }
  }
  void checkHeld() const {
    forEachHeld([this](const Held& held) {
      CHECK(pageAt(held.extent) == held.page);
      CHECK(device_.written[held.page] == held.content);
    });
  }

 private:
  struct Held {
    at::Tensor loan;
    Extent extent;
    PageHandle page = 0;
    int64_t content = 0;
  };
  bool chance(uint32_t oneIn) { return random_() % oneIn == 0; }
  char* at(const Extent& extent) const { return slab_->base() + extent.begin; }
  PageHandle pageAt(const Extent& extent) const {
    auto piece = device_.source->mapped.upper_bound(at(extent));  // large pages hold four of these
    return (--piece)->second.handle * 4 + (at(extent) - piece->first) / 4096;
  }
  Held hold(const Extent& extent, const std::shared_ptr<LoanBook>& book) {
    const PageHandle page = pageAt(extent);
    return {Lender(slab_).lend(at::from_blob(at(extent), {25}), book), extent, page,
            device_.written[page]};
  }
  template <typename Visit>
  void forEachHeld(const Visit& visit) const {
    for (const Held& held : saved_) visit(held);
    for (const auto& each : results_) {
      for (const Held& held : each) {
        if (held.loan.defined()) visit(held);
      }
    }
  }
  bool isHeld(const Extent& extent) const {
    bool found = false;
    forEachHeld([&](const Held& held) { found = found || held.extent.begin == extent.begin; });
    return found;
  }

  Counted& device_;
  std::mt19937& random_;
  ArenaShape shape_;
  std::shared_ptr<Slab> slab_;
  std::vector<Held> saved_;
  std::array<std::vector<Held>, 2> results_;  // by entry
};

}  // namespace

TEST_CASE("whatever several arenas hold, each is entered, and what is held stays",
          "[law5][memory]") {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Counted device;
    std::vector<std::unique_ptr<DrawnArena>> arenas;
    for (int move = 0; move < 60; ++move) {
      CAPTURE(move);
      const size_t i = random() % 4;
      if (i == arenas.size()) arenas.push_back(std::make_unique<DrawnArena>(device, random));
      if (i >= arenas.size()) continue;
      switch (random() % 8) {
        case 0: device.pages.releaseAtRest(); break;
        case 1: arenas[i]->dropResults(); break;
        default: arenas[i]->run();
      }
      for (const auto& each : arenas) each->checkHeld();
    }
  }
}

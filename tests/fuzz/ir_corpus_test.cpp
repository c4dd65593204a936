// The reader stands everything in the corpus: programs of each kind, and what fuzzing found.
#include "tests/catch.h"
#include "tests/fuzz/program_text_fuzzer.h"

#include <filesystem>
#include <fstream>
#include <iterator>

TEST_CASE("the corpus is read or refused") {
  size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator("tests/fuzz/corpus")) {
    INFO(file.path().string());
    std::ifstream stream(file.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    CHECK_NOTHROW(
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
    ++files;
  }
  CHECK(files > 10);
}

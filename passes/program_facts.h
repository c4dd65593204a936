#pragma once
// What passes rely on: facts of a program that one pass brings about and others need.
//
// A fact is of the program, not of the list of passes: a text that has it already needs no pass for it.
// So each has a definition that is checked on the program itself, by the verifier of the pass that
// brings it about where there is one.

#include <cstdint>
#include <initializer_list>

namespace gravure {

struct PassContext;
struct Program;

enum class ProgramFact : uint8_t {
  AwaitedCopies,  // copies to the CPU that the program uses are waited for
  HostReasons,    // host= on each node that must run outside a graph
  Fates,          // fate= on collectives, their waits and what touches their buffers
  Partitions,     // what is captured stands in partitions
  OperandTags,    // each partition has one tag an operand
  RngStates,      // each node that draws has the state that it draws from
  MemoryPlan,     // each value of known size has its offset
};
constexpr uint8_t kProgramFacts = 7;

class FactSet {
 public:
  constexpr FactSet() = default;
  constexpr FactSet(std::initializer_list<ProgramFact> facts) {
    for (ProgramFact fact : facts) bits_ |= bit(fact);
  }
  static constexpr FactSet all() { return FactSet((1u << kProgramFacts) - 1); }

  constexpr bool has(ProgramFact fact) const { return (bits_ & bit(fact)) != 0; }
  constexpr FactSet operator|(FactSet other) const { return FactSet(bits_ | other.bits_); }
  constexpr FactSet operator&(FactSet other) const { return FactSet(bits_ & other.bits_); }
  constexpr FactSet without(FactSet other) const { return FactSet(bits_ & ~other.bits_); }

  template <typename Visit>
  void forEach(Visit&& visit) const {
    for (uint8_t i = 0; i < kProgramFacts; ++i) {
      if (has(static_cast<ProgramFact>(i))) visit(static_cast<ProgramFact>(i));
    }
  }

 private:
  explicit constexpr FactSet(uint32_t bits) : bits_(bits) {}
  static constexpr uint32_t bit(ProgramFact fact) { return 1u << static_cast<uint8_t>(fact); }
  uint32_t bits_ = 0;
};

/// "host reasons"
const char* factName(ProgramFact fact);
/// Throws c10::Error that says where `program` breaks the definition. Linear in nodes plus edges.
void checkFact(ProgramFact fact, const Program& program, const PassContext& context);

}  // namespace gravure

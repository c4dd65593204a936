#include "python/csrc/collector_off.h"

#include "python/csrc/python_api.h"

namespace gravure {
namespace {

/// With Python's lock.
int alive = 0;
bool wasOn = false;

class CollectorOff {
 public:
  explicit CollectorOff(const PythonApi& python) : python_(python) {
    const WithPython lock(python_);
    if (alive++ == 0) wasOn = python_.PyGC_Disable() != 0;
  }
  ~CollectorOff() {
    const WithPython lock(python_);
    if (--alive == 0 && wasOn) (void)python_.PyGC_Enable();
  }
  CollectorOff(const CollectorOff&) = delete;
  CollectorOff& operator=(const CollectorOff&) = delete;

 private:
  const PythonApi& python_;
};

}  // namespace

std::shared_ptr<void> collectorOff() {
  const PythonApi* python = PythonApi::find();
  return python ? std::make_shared<CollectorOff>(*python) : nullptr;
}

}  // namespace gravure

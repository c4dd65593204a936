#pragma once
// Inputs saved beside a program: torch.save({"step": {"layer.weight": tensor, "s0": 3}}, path).

#include "ir/core/program.h"
#include "runtime/device/device_map.h"

#include <ATen/core/ivalue.h>

#include <map>
#include <string>
#include <vector>

namespace gravure {

class InputsFile {
 public:
  /// TORCH_CHECK naming the path if there is no such file, if it is cut off, or if it holds anything
  /// but a dict of entries, each a dict of inputs by name.
  static InputsFile read(const std::string& path);

  /// By entry, the inputs by name, as saved.
  const std::map<std::string, std::map<std::string, c10::IValue>>& entries() const {
    return entries_;
  }

  /// One value an input of `entry`, in order, tensors on the device that `devices` maps their type's
  /// to. An input without a name goes by its value's. A device's default generator is None, a paired
  /// one ("cuda:0#1") a new generator with the seed of its number, in its saved state where the program
  /// runs on the device it was exported on. Saved values that the file lacks are None: another entry
  /// makes them. TORCH_CHECK naming any other input that the file lacks.
  std::vector<c10::IValue> bind(const Entry& entry, const DeviceMap& devices) const;

 private:
  std::string path_;
  std::map<std::string, std::map<std::string, c10::IValue>> entries_;
};

}  // namespace gravure

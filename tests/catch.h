#pragma once

// libtorch's logging defines a CHECK of its own, which would silently take the place of Catch2's.
// So it comes first, and Catch2's wins. tools/cc.bzl includes this file ahead of every test.
#include <c10/util/Logging.h>
#undef CHECK

#include <catch2/catch.hpp>
